/* What happens to the cache: each scenario's scenes and operations, and the setting that it is written for.

A line that begins with = opens a scene. "A: Who was Ada" is a prompt, "A + She saw" two tokens, one operation each, "A > B"
a fork, "- A" an end. Tokens are words. */
(function () {
  "use strict";

  const SCENARIOS = {
    tour: {
      title: "The tour",
      blocks: 10,
      size: 4,
      longest: 32,
      lines: `
        = Two prompts that begin alike
        A: You are a kind bot . Who was Ada ?
        B: You are a kind bot . Why is it so hot ?
        = A token at a time
        A + She saw
        B + Sun
        A + what
        = One text becomes two
        A > C
        C + sums
        A + code
        C + can
        = One goes, and its text comes back
        - B
        D: You are a kind bot . Why is it so hot ? Sun And now ?
        = The pool is full
        E: Sing a song of six cats in a hat , one by one
        - C
        - A
        E: Sing a song of six cats in a hat , one by one
        = Forgotten in time
        F: Let us go then ,
        - E
        G: You are a kind bot . Who was Ada ?`,
    },
    four: {
      title: "Four answers",
      blocks: 8,
      size: 16,
      longest: 64,
      lines: `
        = One prompt
        A: ${numbered("p", 33)}
        = Three forks
        A > B
        A > C
        A > D
        = Ten tokens each
        ${rounds(["A", "B", "C", "D"], 10)}`,
    },
    full: {
      title: "Too small",
      blocks: 6,
      size: 4,
      longest: 16,
      lines: `
        = Two prompts
        A: Tell me a long tale of the sea
        B: Name a hue
        = Both go on
        A + Once
        B + Blue
        A + upon
        B + or
        A + a
        B + red
        A + time
        A + a
        B + or
        B + teal
        = No block for the next token
        A > C
        C + ship
        A + ship
        = Room again
        - B
        A + ship
        C + sank`,
    },
    twins: {
      title: "Twins",
      blocks: 4,
      size: 4,
      longest: 16,
      lines: `
        = The same text, made twice
        A: I am so
        B: I am so
        A + glad
        B + glad
        = The one that is found has no owner
        - A
        C: I am so glad !
        - C
        = Its place is needed
        D: Not me , no , not now
        = The other takes over
        B + that
        - D
        B + it
        B + is
        B + you
        E: I am so glad that it is you !`,
    },
  };

  function numbered(letter, count) {
    return Array.from({ length: count }, (_, k) => `${letter}${k}`).join(" ");
  }

  /* A token for each sequence in turn. */
  function rounds(names, count) {
    const round = (k) => names.map((name) => `${name} + ${name.toLowerCase()}${k}`);
    return Array.from({ length: count }, (_, k) => round(k)).flat().join("\n");
  }

  /* The operations of a text like those above, and scenes: of each its title and the first of its operations, counted from 1. */
  function read(lines) {
    const operations = [];
    const scenes = [];
    for (const line of lines.split("\n").map((each) => each.trim()).filter(Boolean)) {
      const words = line.split(" ");
      const [first, second, ...rest] = words;
      if (first === "=") scenes.push({ title: words.slice(1).join(" "), first: operations.length + 1 });
      else if (first === "-") operations.push(["free", second]);
      else if (first.endsWith(":")) operations.push(["allocate", first.slice(0, -1), words.slice(1)]);
      else if (second === ">") operations.push(["fork", first, rest[0]]);
      else operations.push(...rest.map((token) => ["append", first, token]));
    }
    return { operations, scenes };
  }

  for (const scenario of Object.values(SCENARIOS)) Object.assign(scenario, read(scenario.lines));

  globalThis.cacheBlocks = { ...globalThis.cacheBlocks, SCENARIOS, read };
})();
