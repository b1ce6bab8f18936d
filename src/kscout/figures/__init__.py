"""Content of pages and files: drawings, pictures, tables and blocks.

Nothing here needs torch. `blocks` and `tables` are plain data; matplotlib is imported by the
modules that draw (`style`, `curves`, `pictures`, `png`), which callers import only for drawing.
"""
