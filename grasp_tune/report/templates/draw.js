// Draws the figures whose data are in the page.
(() => {
  // The colours of the figures, by the names that the page's light and dark style has for them.
  const names = ["ink", "soft", "line", "card", "accent", "mark", "warm"];
  const used = { "#0b6e75": "accent", "#8fa1b3": "mark", "#b4532a": "warm", "#ffffff": "card" };
  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    const colour = {};
    for (const name of names) colour[name] = style.getPropertyValue("--" + name).trim();
    for (const box of document.querySelectorAll("[data-figure]")) {
      const source = document.getElementById("figure-" + box.dataset.figure);
      const figure = JSON.parse(source.textContent, (key, value) =>
        colour[used[value]] ?? value);
      const plot = box.querySelector(".plot");
      if (figure.layout.height) plot.style.height = figure.layout.height + "px";
      const narrow = plot.clientWidth < 480;
      const layout = Object.assign({}, figure.layout, {
        template: {}, autosize: true,
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
        margin: { l: narrow ? 40 : 60, r: 16, t: 16, b: 48 },
        font: { color: colour.soft, family: "system-ui, sans-serif", size: narrow ? 11 : 13 },
        hoverlabel: { bgcolor: colour.card, bordercolor: colour.line, font: { color: colour.ink } },
      });
      for (const key of Object.keys(layout)) {
        if (/^[xy]axis/.test(key)) {
          layout[key] = Object.assign({}, layout[key], {
            gridcolor: colour.line, zerolinecolor: colour.line, linecolor: colour.line,
            automargin: true, tickangle: 0,
          });
          // Names beside the rows leave room for half as many marks, which are powers of ten.
          const dtick = layout[key].dtick;
          if (narrow && key[0] === "x" && !layout.yaxis2 && layout.height && dtick)
            layout[key].dtick = dtick > 0 ? 2 * dtick : 1;
        }
      }
      Plotly.react(plot, figure.data, layout,
        { responsive: true, displaylogo: false, displayModeBar: false });
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
