"""What each part of the screen says: pure functions from rows to lines. They know no terminal and no Textual."""
