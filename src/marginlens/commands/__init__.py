"""The commands that ask about a problem in a file, one file each, and what they share: options, answers, endings, a picture."""
