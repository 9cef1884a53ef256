"""The texts of a class: for its students and its teacher."""

from ..common.language import mark

JOIN = mark("Join")
JOIN_HELP = mark("The address of this server, to be opened by others in the same network.")
CODE = mark("QR code of the address above")
OPEN_IT = mark("On a phone or computer in the same network, open:")
NO_ADDRESS = mark(
    "This machine had no address in a network when the server started. Connect it to the network "
    "of the class and start the server again."
)
PIN, PIN_INSTEAD, RELEASE = mark("Pin for all"), mark("Pin this instead"), mark("Release")
PIN_HELP = mark("All students see this page with these settings until you release it.")
RELEASE_HELP = mark("Students look around on their own again.")
NO_UPLOAD = mark(
    "The view was not pinned: an uploaded picture stays with the visitor who has it. Choose a "
    "sample picture, then pin the view."
)
PINNED = mark(
    "**The teacher’s view is shown.** You can look around again when the teacher releases it."
)
RELEASED = mark("The teacher has released the view, and it is yours to change.")
GO_BACK, STAY = mark("Back to my own view"), mark("Stay here")
TEACHERS_LINK = "Teacher's page, from which a view is pinned for all: {url}"
NO_KEY = (
    "This is no teacher's link of this server: the server writes a new one into its log whenever "
    "it starts."
)
