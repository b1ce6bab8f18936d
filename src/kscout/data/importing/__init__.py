"""Importing volumes of any format into a store: finding, reading, cropping, assigning splits."""
