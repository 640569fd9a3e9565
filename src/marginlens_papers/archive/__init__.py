"""The archive: finished training runs as small files, and the results that come with the package."""
