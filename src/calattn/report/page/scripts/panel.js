/* The panel: a titled section of a subject, its notes, and links to the definitions. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, view } = C;

  function panel(name, title, ...children) {
    const id = C.freshId(name);
    return h(
      "section",
      { class: `panel panel-${name}`, "data-panel": name, "aria-labelledby": id },
      h("h3", { id }, title),
      children,
    );
  }

  /** Keeps the place of a panel that another subject has, so that the columns stay level. */
  function absent(name, title) {
    const element = panel(name, title, h("p", { class: "dim" }, "Not recorded for this one."));
    element.classList.add("absent");
    return { element };
  }

  const note = (...text) => h("p", { class: "note-text" }, text);

  const slug = (text) =>
    `method-${String(text)
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "-")}`;

  /** A metric's title, linked to its definition where the methods have one. */
  function titleLink(metric) {
    const defined = view.page.methods.map(([title]) => slug(title));
    const target = [metric.title, metric.name].map(slug).find((name) => defined.includes(name));
    return target ? h("a", { href: `#${target}` }, metric.title) : metric.title;
  }

  Object.assign(C, { panel, absent, note, slug, titleLink });
})();
