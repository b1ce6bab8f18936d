"""Images: stores on disk, sets of slices in memory, importers and procedural phantoms."""
