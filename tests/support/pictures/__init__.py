"""The pictures of the documentation: SVG without scripts or fonts of its own; the same input gives the same bytes."""
