"""What the report says beside the captions of the pages."""

OPENED = "Layer {layer} is opened here; the app and vitviz.widget open every layer."
NO_PICTURE = "Anatomy is left out: it needs the pictures themselves, and captures alone were given."
EXPERIMENTS = (
    "This file has what one forward pass of each picture shows. Experiments, which run the model "
    "again, are not in it: muted heads, hidden patches, occlusion, curves of removal, shuffled "
    "patches, and maps of one class. The app makes them on the pages Classify, Rollout and Anatomy."
)
NOT_ALIKE = (
    "The figures of Distance, Rollout and Tokens are left out: they need every token to attend to "
    "every token, and the same tokens in each layer, which is not so in {model}."
)
WEIGHTS = "The weights"
UNTRAINED = "These are random weights."
SOME_UNTRAINED = "Some of these weights are random, as each line below its figure says."
COMPARED = "Compared"
