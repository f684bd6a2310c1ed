(() => {
  "use strict";
  const root = document.documentElement;
  const isDark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const colours = () => {
    const style = getComputedStyle(root);
    const [ink, muted, line] = ["--ink", "--muted", "--line"].map((name) => style.getPropertyValue(name).trim());
    return {
      background: "transparent",
      axis: {labelColor: muted, titleColor: muted, tickColor: line, gridColor: line, domainColor: line},
      legend: {labelColor: muted, titleColor: muted},
      header: {labelColor: ink, titleColor: muted},
      title: {color: ink, subtitleColor: muted},
      text: {color: ink},
    };
  };
  const read = (figure, name) => JSON.parse(figure.querySelector(`script.${name}`).textContent);
  const inked = (spec, ink) => JSON.parse(JSON.stringify(spec).replaceAll('"#1f2328"', JSON.stringify(ink)));
  // Panels and plots are made to fit the page: fewer panels beside each other, or a narrower plot.
  const fitted = (spec, available) => {
    const margin = 96, spacing = 16;
    if (spec.facet && spec.spec) {
      const width = Math.min(spec.spec.width, available - margin);
      spec.spec.width = width;
      spec.columns = Math.max(1, Math.min(spec.columns, Math.floor((available - margin + spacing) / (width + spacing))));
    } else if (typeof spec.width === "number") {
      spec.width = Math.max(140, Math.min(spec.width, available - margin - (spec.usermeta?.labels ?? 60)));
    }
    return spec;
  };
  const draw = async (figure) => {
    const live = figure.querySelector(".live");
    const ink = getComputedStyle(root).getPropertyValue("--ink").trim();
    try {
      const result = await vegaEmbed(live, fitted(inked(read(figure, "spec"), ink), figure.clientWidth), {
        actions: false, renderer: "svg", config: colours(), tooltip: {theme: isDark() ? "dark" : "light"},
      });
      figure.view = result.view;
      live.hidden = false;
      figure.querySelector(".still").hidden = true;
      figure.dataset.drawn = "yes";
    } catch (error) {
      figure.dataset.drawn = "no";
      console.error(`chart ${figure.id}: ${error}`);
    }
  };
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const table = (rows) => {
    const names = [...new Set(rows.flatMap((row) => Object.keys(row)))];
    return [names, ...rows.map((row) => names.map((name) => row[name]))].map((row) => row.map(cell).join(",")).join("\n") + "\n";
  };
  const save = (name, kind, text) => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], {type: kind}));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      watcher.unobserve(entry.target);
      draw(entry.target);
    }
  }, {rootMargin: "400px"});
  for (const figure of document.querySelectorAll("figure")) {
    watcher.observe(figure);
    figure.querySelector('[data-save="csv"]').addEventListener("click", () => save(`${figure.id}.csv`, "text/csv", table(read(figure, "rows"))));
    figure.querySelector('[data-save="svg"]').addEventListener("click", async () => {
      const still = figure.querySelector(".still").innerHTML;
      save(`${figure.id}.svg`, "image/svg+xml", figure.view ? await figure.view.toSVG() : still);
    });
  }
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    for (const figure of document.querySelectorAll("figure[data-drawn=yes]")) draw(figure);
  });
})();
