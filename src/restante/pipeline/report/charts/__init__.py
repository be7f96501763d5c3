"""Charts of a figure's table as SVG, 340 units wide, whose styles are those of the page. Pure."""
