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
      h("h3", { id, "aria-level": view.several ? null : "2" }, title), // under the subject's h2, where there are several
      children,
    );
  }

  /** Keeps the place of a panel that another subject has, so that the columns stay level. */
  function absent(name, title) {
    const element = panel(name, title, h("p", { class: "dim" }, "Not recorded for this one."));
    element.classList.add("absent");
    return { element };
  }

  /** A section that is of all subjects together: its title and one panel. */
  function section(name, label, title, ...children) {
    const box = h("div", { class: `panel panel-${name}`, "data-panel": name }, children);
    return h("section", { class: "comparisons", "aria-label": label }, h("h2", {}, title), box);
  }

  const note = (...text) => h("p", { class: "note-text" }, text);

  /** "at T = 1" beside what does not follow the slider, seen while the slider stands elsewhere. Its place is kept:
      words that come and go would move the page under the hand. */
  function atOne(subject) {
    const element = h("span", { class: "at-one" }, "at T = 1");
    return { element, update: () => element.classList.toggle("off", !view.live(subject).moved) };
  }

  const slug = (text) =>
    `method-${String(text)
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "-")}`;

  /** A metric's title, linked to its definition. */
  const titleLink = ({ title }) => h("a", { href: `#${slug(title)}` }, title);

  Object.assign(C, { panel, section, absent, note, atOne, slug, titleLink });
})();
