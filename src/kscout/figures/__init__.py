"""What a page or a file shows: drawings, pictures, tables and the blocks that hold them.

Nothing here needs torch. `blocks` and `tables` are plain data; matplotlib is imported by the
modules that draw (`style`, `curves`, `pictures`, `png`), so import those where something is drawn.
"""
