from vitviz.app.main import main

main()
