/* The frame of a page: its theme, its printing, its document, and what screen readers are told. */
(() => {
  "use strict";
  const C = window.calattn;
  const { h } = C;

  /** Light, dark, or what the system says; remembered where the browser lets us. */
  function themeSwitch(select) {
    const dark = window.matchMedia("(prefers-color-scheme: dark)"),
      KEY = "calattn-theme";
    const remembered = (action) => {
      try {
        return action(window.localStorage);
      } catch {
        return null; // storage may be forbidden to files opened from disk
      }
    };
    const apply = () => {
      const choice = select.value;
      document.documentElement.dataset.theme = choice === "system" ? (dark.matches ? "dark" : "light") : choice;
    };
    const before = remembered((storage) => storage.getItem(KEY));
    select.value = before === "light" || before === "dark" ? before : "system";
    select.addEventListener("change", () => {
      remembered((storage) => storage.setItem(KEY, select.value));
      apply();
    });
    dark.addEventListener("change", apply);
    apply();
  }

  /** Numbers that are folded are open on paper, and folded again afterwards; a whole subject stays as the reader left it. */
  function printing(button) {
    let opened = [];
    window.addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("details:not([open]):not(.no-print, .subject-fold)")];
      opened.forEach((one) => one.setAttribute("open", ""));
    });
    window.addEventListener("afterprint", () => opened.forEach((one) => one.removeAttribute("open")));
    button.addEventListener("click", () => window.print());
  }

  // Only what lies beside this file: a link from data must not run anything. Browsers skip white space in a scheme.
  const isNearby = (href) =>
    typeof href === "string" && !/^([a-z][a-z0-9+.-]*:|[\\/])/i.test(href.replace(/[\u0000-\u0020]/g, ""));

  /** What has to be known before anything below is believed; also on paper. */
  const warning = (text) =>
    h("p", { class: "notice warning", role: "note", "data-warning": true }, h("strong", {}, "Warning: "), text);

  /** The caveat of single trainings, where there is one. */
  const remarkText = (remark) =>
    remark && h("p", { class: "note-text", "data-remark": true }, h("strong", {}, "Note: "), remark, ".");

  function readDocument() {
    const found = JSON.parse(document.getElementById("document").textContent);
    const title = document.getElementById("title");
    title.append(...C.breakable(found.title));
    if (isNearby(found.home)) {
      title.before(h("p", { class: "home no-print" }, h("a", { href: found.home, "data-home": true }, "← all runs")));
    }
    const content = document.getElementById("content");
    if (found.schema === 1) {
      content.append(...found.warnings.map(warning));
      return found;
    }
    const text =
      `This page reads documents of schema 1, but got schema ${found.schema}. ` +
      "Write it again with the calattn that made the data.";
    content.append(h("p", { class: "notice" }, text));
    return null;
  }

  let pending = null;
  /** Tell screen readers, once the reader has stopped moving things. */
  function announce(text) {
    window.clearTimeout(pending);
    pending = window.setTimeout(() => {
      document.getElementById("announcer").textContent = text;
    }, 500);
  }

  Object.assign(C, { themeSwitch, printing, isNearby, remarkText, readDocument, announce });
})();
