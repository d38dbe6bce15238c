/* The page: the panels of each subject side by side, and one control bar that drives them.
   A panel is {element, update()?}; update redraws what depends on temperature, bins or threshold. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h, percent, whole, temperatureText, view } = C;

  C.themeSwitch(document.getElementById("theme"));
  C.printing(document.getElementById("print"));
  if (!view) return;

  function panelsOf(subject) {
    const any = (test) => view.subjects.some(test);
    return [
      C.summaryPanel(subject),
      C.reliabilityPanel(subject),
      C.temperaturePanel(subject),
      C.actingPanel(subject),
      any((one) => one.risk_coverage) && C.riskPanel(subject),
      C.metricsPanel(subject),
      any((one) => one.groups.length) && C.groupsPanel(subject),
      any((one) => one.scale) && C.scalePanel(subject),
      any((one) => one.dynamics) && C.dynamicsPanel(subject),
      any((one) => one.errors) && C.errorsPanel(subject),
      any((one) => one.per_class) && C.classesPanel(subject),
      C.provenancePanel(subject),
    ].filter(Boolean);
  }

  const columns = view.subjects.map((subject) => ({ subject, panels: panelsOf(subject) }));
  const controls = C.controlBar();
  const overview = view.several ? C.overviewSection() : null;
  let waiting = false;

  /** The address says how the controls stand, so that a link shows what its sender saw. */
  function writeAddress() {
    const text = view.address();
    if (text === window.location.hash.slice(1)) return;
    if (!text && !/=/.test(window.location.hash)) return; // a definition that was jumped to
    window.history.replaceState(null, "", text ? `#${text}` : window.location.pathname + window.location.search);
  }

  /** Redraw what the controls change, at most once a frame. The state itself is already up to date. */
  view.changed = () => {
    controls.update();
    writeAddress();
    if (waiting) return;
    waiting = true;
    window.requestAnimationFrame(() => {
      waiting = false;
      update();
    });
  };

  function spoken(subject) {
    const { temperature, ece, nll } = view.live(subject);
    const numbers = `ECE ${percent(ece)}, NLL ${view.nllText(subject, nll, "infinite")}`;
    return `${view.several ? `${subject.title}: ` : ""}T = ${temperatureText(temperature)}, ${numbers}`;
  }

  function update() {
    if (overview) overview.update();
    for (const { panels, fold } of columns)
      if (!fold || fold.open) for (const one of panels) if (one.update) one.update();
    C.announce(view.subjects.map(spoken).join("; "));
  }

  const many = view.subjects.length > 2;

  /** Of three or more each is folded: the overview compares them, and what is unfolded is drawn then. */
  function columnOf(column) {
    const { subject, panels } = column;
    const element = h(
      "section",
      { class: "subject", id: `subject-${subject.id}`, "data-subject": subject.id, "aria-label": subject.title },
      panels.map((one) => one.element),
    );
    element.style.setProperty("--panels", String(panels.length));
    if (!many) return element;
    const title = h("summary", {}, "All about ", h("strong", {}, C.breakable(subject.title)));
    column.fold = h("details", { class: "subject-fold", toggle: () => column.fold.open && update() }, title, element);
    return column.fold;
  }

  function writeFrame() {
    const one = view.subjects[0];
    const facts = view.several
      ? [`${view.subjects.length} sets of predictions`]
      : [`${whole(one.samples)} samples`, `${whole(one.classes)} classes`];
    if (!C.missing(one.target)) facts.push(`P(${one.target}) against “the label is ${one.target}”`);
    document.getElementById("meta").textContent = [...facts, C.madeText(view.page)].join(" · ");
    document.getElementById("colophon").textContent =
      `In brackets: ${view.levelText} intervals. This file works without a network.`;
  }

  function build() {
    const content = document.getElementById("content");
    document.body.classList.add(many ? "many" : view.several ? "several" : "single");
    const parts = [
      view.page.contest && C.contestSection(view.page.contest),
      view.page.sets && C.setsSection(view.page.sets),
      view.page.comparisons.length && !view.page.contest && C.comparisonSection(), // a contest says it
      controls.element,
      overview && overview.element,
      h("div", { class: "subjects" }, columns.map(columnOf)),
      C.methodsSection(),
    ];
    content.append(...parts.filter(Boolean));
    writeFrame();
    view.restore(window.location.hash.slice(1));
    controls.update();
    update();
    window.addEventListener("hashchange", () => view.restore(window.location.hash.slice(1)));
  }

  build();
})();
