/* A player of anything that goes in steps: its buttons, slider, keys and pace, and a link that keeps the place.

A page draws what it plays and says each step in words; whatever has to do with moving through the steps is here. Plain
script, no module: a browser refuses those to a page opened from disk. tile_loop/view.js shows how it is used. */
(function () {
  "use strict";

  const SVG = "http://www.w3.org/2000/svg";
  const ICONS = { step: "M4 2.5L12 8l-8 5.5z", leap: "M2 3l6 5-6 5zM8 3l6 5-6 5z", first: "M3 3h2v10H3zM13 3v10L6 8z" };
  const TICK_MS = 450;
  const CALM_TICK_MS = 1500; // for readers who want less motion
  const TICKS = 80; // at most, for a whole run
  const ADDRESS_MS = 300; // browsers refuse a page that writes its address too often

  /* An element with attributes and children; null children are left out. */
  function h(tag, attributes, ...children) {
    return fill(document.createElement(tag), attributes, children);
  }

  function svg(tag, attributes, ...children) {
    return fill(document.createElementNS(SVG, tag), attributes, children);
  }

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.flat().filter((child) => child !== null));
    return element;
  }

  function button(text, action, label) {
    return h("button", { type: "button", onclick: action, "aria-label": label, title: label }, text);
  }

  /* Change a text only when it is another one, so that it is not read aloud twice. */
  function say(element, words) {
    if (element.textContent !== words) element.textContent = words;
  }

  /* A player. Options:
  show(position)           draw this position, and return it in words; 0 is the start
  last()                   the last position there is now
  leap(position, by)       where a leap from there leads, by = 1 onwards or −1 back; leapName, what it passes ("tile")
  picture                  the element that shows what is played
  keysIn                   the element in which all keys are the player's

  Left and right arrows step, with shift by leaps; with nothing in focus they do so while the picture is to be seen.
  Home, End and the space bar scroll a page, so they belong to the player only where keysIn has the focus.

  Returns element; at(), the position; goTo(position), which shows it again if it is the same; pause(). */
  function makePlayer({ show, last, leap, leapName, picture, keysIn }) {
    let at = 0;
    let timer = 0;
    const said = h("p", { class: "pl-said", "aria-live": "polite", "data-out": "said" });
    const place = h("span", { class: "pl-place", "data-out": "place" });
    const scrub = h("input", { type: "range", min: 0, step: 1, "aria-label": "Step", oninput: () => move(Number(scrub.value)) });
    const back = {
      first: button(icon("first"), () => move(0), "Reset: back to the start"),
      leap: button(icon("leap", true), () => move(leap(at, -1)), `A ${leapName} back`),
      step: button(icon("step", true), () => move(at - 1), "A step back"),
    };
    const on = {
      step: button(icon("step"), () => move(at + 1), "A step on"),
      leap: button(icon("leap"), () => move(leap(at, 1)), `A ${leapName} on`),
      last: button(icon("first", true), () => move(last()), "To the end"),
    };
    const start = button("Play", play);
    start.classList.add("pl-main");
    const element = h(
      "div",
      { class: "pl-player", role: "group", "aria-label": "Player" },
      said,
      h("div", { class: "pl-scrub" }, back.first, scrub, on.last),
      h("div", { class: "pl-buttons" }, back.leap, back.step, start, on.step, on.leap, place),
    );
    document.addEventListener("keydown", onKey);

    function goTo(position) {
      at = Math.max(0, Math.min(position, last()));
      say(said, show(at));
      scrub.max = last();
      scrub.value = at;
      scrub.setAttribute("aria-valuetext", `step ${at} of ${last()}`);
      place.textContent = `${at.toLocaleString("en-US")} / ${last().toLocaleString("en-US")}`;
      for (const control of Object.values(back)) control.disabled = at <= 0;
      for (const control of Object.values(on)) control.disabled = at >= last();
    }

    /* A move of the reader's, which ends the play. */
    function move(position) {
      pause();
      goTo(position);
    }

    function play() {
      if (timer) return pause();
      if (at >= last()) goTo(0);
      const calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
      const stride = Math.ceil((last() - at) / TICKS);
      said.setAttribute("aria-live", "off"); // a voice cannot keep up; the last step is read when it stops
      start.textContent = "Pause";
      timer = setInterval(() => {
        goTo(at + stride);
        if (at >= last()) pause();
      }, calm ? CALM_TICK_MS : TICK_MS);
    }

    function pause() {
      if (!timer) return;
      clearInterval(timer);
      timer = 0;
      start.textContent = "Play";
      said.setAttribute("aria-live", "polite");
      said.replaceChildren();
      goTo(at);
    }

    function onKey(event) {
      if (event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented) return;
      const from = event.target;
      const inside = keysIn.contains(from);
      if (from.matches("input, select, textarea") || (event.key === " " && from.matches("button, summary, a"))) return;
      const moves = {
        ArrowRight: () => move(event.shiftKey ? leap(at, 1) : at + 1),
        ArrowLeft: () => move(event.shiftKey ? leap(at, -1) : at - 1),
        ...(inside && { Home: () => move(0), End: () => move(last()), " ": play }),
      };
      if (!Object.hasOwn(moves, event.key) || !(inside || (from === document.body && isInView(picture)))) return;
      event.preventDefault();
      moves[event.key]();
    }

    return { element, at: () => at, goTo, pause };
  }

  function isInView(element) {
    const box = element.getBoundingClientRect();
    return box.bottom > 0 && box.top < window.innerHeight;
  }

  /* Drawn, since not every font has these signs; `turned` points it the other way. */
  function icon(name, turned = false) {
    const turn = turned ? "translate(16 0) scale(-1 1)" : null;
    const drawing = { viewBox: "0 0 16 16", class: "pl-icon", "aria-hidden": "true" };
    return svg("svg", drawing, svg("path", { d: ICONS[name], transform: turn }));
  }

  /* Keep what the page shows in the part of its address behind the #, so that a bookmark or a link finds it again.
  write() gives the values to keep; read(params) takes over those of an address that the reader goes to.

  Returns given(), the values of the address (URLSearchParams) or null, and save(), to be called after each change. */
  function keepInAddress({ read, write }) {
    let waiting = 0;
    let reading = false;

    function given() {
      followNamed();
      const text = window.location.hash.slice(1);
      return text.includes("=") ? new URLSearchParams(text) : null;
    }

    /* An address may name a part of the page that has one link to a setting: it stands for that link. */
    function followNamed() {
      const links = document.getElementById(window.location.hash.slice(1))?.querySelectorAll('a[href^="#"][href*="="]');
      if (links?.length === 1) window.location.replace(links[0].getAttribute("href"));
    }

    function save() {
      if (waiting || reading) return;
      waiting = setTimeout(() => {
        waiting = 0;
        history.replaceState(null, "", `#${new URLSearchParams(write())}`);
      }, ADDRESS_MS);
    }

    window.addEventListener("hashchange", () => {
      const wanted = given();
      if (!wanted) return;
      reading = true;
      read(wanted);
      reading = false;
      // The browser's own smooth scroll to the part so named is lost now and then, when another one is under way.
      document.getElementById(window.location.hash.slice(1))?.scrollIntoView();
    });
    return { given, save };
  }

  globalThis.stepPlayer = { h, svg, button, say, makePlayer, keepInAddress };
})();
