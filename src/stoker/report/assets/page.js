(() => {
  "use strict";
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const read = (figure, name) => JSON.parse(figure.querySelector(`script.${name}`).textContent);
  const rowsOf = (columns) => {
    const names = Object.keys(columns);
    const count = names.length ? columns[names[0]].length : 0;
    return Array.from({length: count}, (_, row) => Object.fromEntries(names.map((name) => [name, columns[name][row]])));
  };

  // Colours of the charts that are too dark on a dark page, and those that would look like one of the brighter ones.
  const BRIGHTER = {
    "#0072b2": "#3f9fdf", "#56b4e9": "#b5e0fa", "#88ccee": "#6f8a9c",
    "#332288": "#8f86e6", "#117733": "#3aa761", "#aa4499": "#cf72c0",
  };
  const legendColumns = (spec, width) =>
    Math.max(1, Math.min(8, Math.floor((width - 80) / (6.2 * (spec.usermeta?.label ?? 12) + 34))));

  // The specification in the page's colours. Cells keep their own text colour: they have their own background.
  const coloured = (spec, width) => {
    const ink = colour("--ink"), muted = colour("--muted"), line = colour("--line");
    let text = JSON.stringify(spec).replaceAll('"#1f2328"', JSON.stringify(ink));
    if (isDark()) for (const [dim, bright] of Object.entries(BRIGHTER)) text = text.replaceAll(dim, bright);
    const found = JSON.parse(text);
    const config = found.config;
    Object.assign(config.axis, {labelColor: muted, titleColor: muted, tickColor: line, gridColor: line});
    Object.assign(config.legend, {labelColor: muted, titleColor: muted, columns: legendColumns(spec, width)});
    return found;
  };

  // Panels and plots fit the page: as many panels beside each other as have room, a little wider or narrower than
  // specified; and plots no wider than the page.
  const fitted = (spec, available) => {
    if (spec.facet && spec.spec) {
      const margin = 76, gap = 18 + (spec.resolve ? 44 : 0), wanted = spec.spec.width;
      const panels = Math.min(spec.columns, spec.usermeta?.panels ?? spec.columns);
      const widthOf = (columns) => (available - margin - (columns - 1) * gap) / columns;
      let columns = Math.max(1, panels);
      while (columns > 1 && widthOf(columns) < Math.min(wanted, Math.max(104, wanted * 0.6))) columns -= 1;
      spec.columns = columns;
      spec.spec.width = Math.max(90, Math.floor(Math.min(widthOf(columns), wanted * 1.6)));
      spec.facet.header.labelLimit = spec.spec.width + 12;
    } else if (typeof spec.width === "number") {
      spec.width = Math.min(spec.usermeta?.cells ? spec.width + 70 : Math.max(spec.width + 120, 560), available - 2);
      spec.autosize = {type: "fit-x", contains: "padding"};
    }
    const across = spec.usermeta?.across;
    if (across) sized(spec.spec ?? spec, (spec.spec?.width ?? spec.width - 130) / across);
    return spec;
  };

  // Numbers in cells fit the cells, and are left out where they would be too small to read.
  const sized = (map, cellWidth) => {
    const isNumber = (layer) => layer.mark.type === "text" && layer.encoding.text.field !== "sign";
    const size = Math.min(11, Math.floor(cellWidth / 3.6));
    map.layer = map.layer.filter((layer) => size >= 8 || !isNumber(layer));
    for (const layer of map.layer.filter(isNumber)) layer.mark.fontSize = size;
  };

  const draw = async (figure) => {
    const live = figure.querySelector(".live"), still = figure.querySelector(".still");
    const width = figure.clientWidth;
    const spec = fitted(coloured(read(figure, "spec"), width), width);
    spec.datasets = {rows: rowsOf(read(figure, "rows"))};
    live.hidden = false;
    try {
      const result = await vegaEmbed(live, spec, {
        actions: false, renderer: "svg", tooltip: {theme: isDark() ? "dark" : "light"},
      });
      figure.view?.finalize();
      figure.view = result.view;
      figure.dataset.drawn = "yes";
      figure.dataset.width = width;
      still.hidden = true;
    } catch (error) {
      live.hidden = true;
      figure.dataset.drawn = "no";
      console.error(`chart ${figure.id}: ${error}`);
    }
  };

  // Texts that a spreadsheet would read as a formula begin with an apostrophe.
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    let text = String(value);
    if (typeof value === "string" && /^[=+\-@\t\r]/.test(text)) text = `'${text}`;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const table = (columns) => {
    const names = Object.keys(columns);
    const rows = rowsOf(columns).map((row) => names.map((name) => cell(row[name])).join(","));
    return [names.map(cell).join(","), ...rows].join("\n") + "\n";
  };
  const save = (name, kind, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], {type: kind}));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };

  const figures = [...document.querySelectorAll("figure")];
  const redraw = (wanted) => Promise.all(figures.filter((each) => each.dataset.drawn === "yes" && wanted(each)).map(draw));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }, {rootMargin: "400px"});
  for (const figure of figures) {
    watcher.observe(figure);
    const saveRows = () => save(`${figure.id}.csv`, "text/csv", table(read(figure, "rows")));
    // The still picture has the page's light colours, which is what a paper wants.
    const savePicture = () => save(`${figure.id}.svg`, "image/svg+xml", new XMLSerializer().serializeToString(figure.querySelector(".still svg")));
    figure.querySelector('[data-save="csv"]').addEventListener("click", saveRows);
    figure.querySelector('[data-save="svg"]').addEventListener("click", savePicture);
  }
  const theme = () => redraw(() => true);
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    theme();
  });
  dark.addEventListener("change", theme);
  let later;
  addEventListener("resize", () => {
    clearTimeout(later);
    later = setTimeout(() => redraw((each) => Number(each.dataset.width) !== each.clientWidth), 200);
  });
})();
