"""Names that would do harm if anything took them for markup, for code or for TeX."""

HOSTILE = [
    "</script><script>window.harmed = 1</script>",
    "<img src=x onerror='window.harmed = 1'>",
    '"><iframe src="http://example.invalid"></iframe>',
    "$$\\alpha$$",
    "\\[x^2\\]",
    "@{x}{safe}",
    "{{ 7 * 7 }}",
    "a, b & 'c' ` | *d*",
]
