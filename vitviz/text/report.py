"""The texts of a report, beside the captions of the pages."""

from ..common.language import mark

OPENED = mark("Layer {layer} is opened here; the app and vitviz.widget open every layer.")
NO_PICTURE = mark(
    "Anatomy is left out: it needs the pictures themselves, and captures alone were given."
)
NO_EXPERIMENTS = mark(
    "This file has what one forward pass of each picture shows. Experiments, which run "
    "the model again, are not in it: muted heads, hidden patches, occlusion, curves of "
    "removal, shuffled patches, and maps of one class. The app makes them on the pages "
    "Classify, Explain and Anatomy."
)
UNDRAWN = mark(
    "Scripts draw the figures of this file, and they have not run here. A preview, as in a mail or "
    "on a phone, does not run them, and browsers from before 2023 cannot. Save the file and open "
    "it in a newer browser."
)
NOT_ALIKE = mark(
    "The figures of Distance, Rollout and Tokens are left out: they need every token to "
    "attend to every token, and the same tokens in each layer, which is not so in {model}."
)
WEIGHTS_TITLE = mark("The weights")
WEIGHTS_DIGEST = mark("SHA-256 of the weights {sha256}.")
UNTRAINED = mark("These are random weights.")
SOME_UNTRAINED = mark("Some of these weights are random, as each line below its figure says.")
COMPARED = mark("Compared")
