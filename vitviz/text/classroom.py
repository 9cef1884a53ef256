"""What is said to a class and to its teacher."""

JOIN = "Join"
JOIN_HELP = "The address of this server, to be opened by others in the same network."
CODE = "QR code of the address above"
OPEN_IT = "On a phone or computer in the same network, open:"
NO_ADDRESS = (
    "This machine had no address in a network when the server started. Connect it to the network "
    "of the class and start the server again."
)
PIN, PIN_INSTEAD, RELEASE = "Pin for all", "Pin this instead", "Release"
PIN_HELP = "All students see this page with these settings until you release it."
RELEASE_HELP = "Students look around on their own again."
NO_UPLOAD = (
    "The view was not pinned: an uploaded picture stays with the visitor who has it. Choose a "
    "sample picture, then pin the view."
)
PINNED = "**The teacher’s view is shown.** You can look around again when the teacher releases it."
RELEASED = "The teacher has released the view, and it is yours to change."
GO_BACK, STAY = "Back to my own view", "Stay here"
TEACHERS_LINK = "Teacher's page, from which a view is pinned for all: {url}"
NO_KEY = (
    "This is no teacher's link of this server: the server writes a new one into its log whenever "
    "it starts."
)
