const plots = JSON.parse(document.getElementById("plots").textContent);
for (const plot of plots) Bokeh.embed.embed_item(plot);
// Canvases are painted once, in the colours of the scheme.
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => location.reload());
