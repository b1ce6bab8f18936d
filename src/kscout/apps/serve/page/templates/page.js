{% include "player.js" %}
(() => {
  const by = (name) => document.getElementById(name);
  const form = by("choices");
  const fields = form.elements;
  const stage = by("stage");
  const state = { source: "", slice: 0, reconstruction: "", policies: [], n_initial: 0, n_steps: 0, own: [] };
  const NUMBERS = ["slice", "n_initial", "n_steps"];
  let choices = null;
  let player = null;
  let step = 0;
  let asking = null;

  const say = (words, bad = false) => {
    by("status").textContent = words;
    by("status").classList.toggle("bad", bad);
  };
  const ask = async (path, options) => {
    const answer = await fetch(`page/data/${path}`, options).catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new Error("The service does not answer; start it again, then change any choice here.");
    });
    if (answer.ok) return answer;
    if (answer.status === 429) {
      // The backend is busy with other requests, or with one that is being canceled.
      await new Promise((done) => setTimeout(done, 400));
      return ask(path, options);
    }
    const fault = await answer.json().catch(() => ({}));
    throw new Error(fault.error || `the service answered ${answer.status}`);
  };
  const asJson = (message) => ({
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(message),
  });

  const address = () => {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(state)) {
      const text = Array.isArray(value) ? value.join(name === "own" ? "," : "|") : String(value);
      if (text) query.set(name, text);
    }
    query.set("step", step);
    return `#${query}`;
  };
  let writing = 0;
  const writeAddress = () => {
    // Browsers limit the rate of these calls, so only the last position of a slider is written.
    clearTimeout(writing);
    writing = setTimeout(() => history.replaceState(null, "", address()), 150);
  };
  const readAddress = () => {
    const query = new URLSearchParams(location.hash.slice(1));
    for (const name of ["source", "reconstruction"]) if (query.get(name)) state[name] = query.get(name);
    for (const name of NUMBERS) if (/^\d+$/.test(query.get(name) || "")) state[name] = Number(query.get(name));
    if (query.get("policies")) state.policies = query.get("policies").split("|").slice(0, 2);
    state.own = (query.get("own") || "").split(",").filter((text) => /^\d+$/.test(text)).map(Number);
    step = Number(query.get("step")) || 0;
  };

  const fill = (select, entries, value) => {
    select.replaceChildren(...entries.map(([key, label]) => {
      const option = document.createElement("option");
      option.value = key;
      option.textContent = label;
      return option;
    }));
    if (entries.some(([key]) => key === value)) select.value = value;
    return select.value;
  };
  const sourceNow = () => choices.sources.find((one) => one.name === state.source);
  const volumeOf = (source, slice) => {
    let first = 0;
    for (const [index, [, numbers]] of source.volumes.entries()) {
      if (slice < first + numbers.length) return { index, first, numbers };
      first += numbers.length;
    }
    return volumeOf(source, 0);
  };
  const showForm = () => {
    const pairs = (names) => names.map((name) => [name, name]);
    const source = sourceNow() || choices.sources[0];
    fill(fields.source, choices.sources.map((one) => [one.name, one.title]), source && source.name);
    state.source = source ? source.name : "";
    state.reconstruction = fill(fields.reconstruction, pairs(choices.reconstructions), state.reconstruction);
    const first = fill(fields.first, pairs(choices.policies), state.policies[0]);
    const others = choices.policies.filter((name) => name !== first);
    const second = fill(fields.second, [["", "nothing"], ...pairs(others)], state.policies[1] || "");
    state.policies = second ? [first, second] : [first];
    for (const name of ["n_initial", "n_steps"]) fields[name].value = state[name] = state[name] || choices[name];
    if (!source) return;
    fields.n_initial.max = fields.n_steps.max = source.n_cols - 1;
    const { index, first: begin, numbers } = volumeOf(source, state.slice);
    if (state.slice >= begin + numbers.length) state.slice = 0;
    fill(fields.volume, source.volumes.map(([name], at) => [String(at), name]), String(index));
    fields.slice.max = numbers.length - 1;
    fields.slice.value = state.slice - begin;
    by("slice-number").textContent = numbers[state.slice - begin];
  };

  const showVerdict = (verdict) => {
    by("yours").hidden = !verdict;
    if (!verdict) return;
    const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(4)}`;
    say(verdict.turns.map(({ name, column, ssim }) => `${name}: column ${column}, ${signed(ssim - verdict.before)}`).join("; "));
    by("verdict").textContent = `As column ${state.own.length} of ${state.n_steps}, from SSIM ` +
      `${verdict.before.toFixed(4)}: yours is number ${verdict.rank} of the ${verdict.n_left} that were left.`;
    const rows = verdict.turns.map(({ name, column, ssim }) => {
      const row = document.createElement("tr");
      row.className = name === "you" ? "you" : "";
      const cell = (kind, words) => {
        const one = document.createElement(kind);
        one.textContent = words;
        row.append(one);
      };
      const words = name === choices.fixed && !state.policies.includes(name) ? `${name} (fixed order)` : name;
      cell("th", name === "oracle" ? "oracle (the best one)" : words);
      cell("td", column);
      cell("td", ssim.toFixed(4));
      cell("td", signed(ssim - verdict.before));
      return row;
    });
    by("yours").querySelector("tbody").replaceChildren(...rows);
  };
  const show = (answer, at) => {
    if (player) player.close();
    const focus = document.activeElement && document.activeElement.closest("#stage .card, #stage .controls");
    const speed = stage.querySelector(".speed");
    stage.innerHTML = answer.html;
    if (speed) stage.querySelector(".speed").value = speed.value;
    player = window.kscoutPlayer(stage.firstElementChild);
    player.go(at);
    if (focus) stage.querySelector(".card:last-child .kspace").focus({ preventScroll: true });
    by("actions").hidden = false;
    say(`${answer.title}, ${state.reconstruction}`);
  };
  const answered = async (signal) => {
    say("Computing…");
    if (!state.source) throw new Error("There are no slices; start the service with --data STORE.");
    const message = { ...asJson(state), signal };
    const answer = await (await ask("acquisitions", message)).json();
    showVerdict(null);
    show(answer, step);
    if (!state.own.length) return;
    say("Comparing with every other column…");
    showVerdict(await (await ask("verdicts", message)).json());
  };
  const update = async () => {
    // Cancel the previous request: the service detects this, and stops the computation.
    const pause = asking ? 250 : 0;
    if (asking) asking.abort();
    const request = asking = new AbortController();
    stage.setAttribute("aria-busy", "true");
    writeAddress();
    try {
      // While a slider moves, only its last position is requested.
      if (pause) await new Promise((done) => setTimeout(done, pause));
      if (asking === request) await answered(request.signal);
    } catch (error) { if (asking === request) say(error.message, true); }
    if (asking !== request) return;
    asking = null;
    stage.setAttribute("aria-busy", "false");
  };

  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", ({ target }) => {
    if (!target.name || (target.type === "number" && !target.checkValidity())) return;
    const source = sourceNow();
    if (target.name === "source") { state.source = target.value; state.slice = 0; }
    if (target.name === "volume") {
      const before = source.volumes.slice(0, Number(target.value));
      state.slice = before.reduce((sum, [, numbers]) => sum + numbers.length, 0);
    }
    if (target.name === "slice") state.slice = volumeOf(source, state.slice).first + Number(target.value);
    if (target.name === "reconstruction") state.reconstruction = target.value;
    if (target.name === "first" || target.name === "second") state.policies = [fields.first.value, fields.second.value];
    if (target.name === "n_initial" || target.name === "n_steps") state[target.name] = Number(target.value);
    if (["source", "volume", "slice", "n_initial", "n_steps"].includes(target.name)) { state.own = []; step = 0; }
    showForm();
    update();
  });
  stage.addEventListener("step", ({ detail }) => {
    step = detail.place;
    if (!detail.playing) writeAddress();
  });
  stage.addEventListener("column", ({ detail }) => {
    if (detail.columns.length > state.n_steps) { say("All columns are acquired; go back a step.", true); return; }
    state.own = detail.columns;
    step = state.own.length;
    update();
  });
  by("back").addEventListener("click", () => { state.own = state.own.slice(0, -1); step = state.own.length; update(); });
  by("clear").addEventListener("click", () => { state.own = []; step = 0; update(); });

  by("link").addEventListener("click", async () => {
    history.replaceState(null, "", address());
    try {
      await navigator.clipboard.writeText(location.href);
      say("The address is copied.");
    } catch { say("Copy it from the address bar."); }
  });
  addEventListener("hashchange", () => { readAddress(); showForm(); update(); });

  const begin = async () => {
    try {
      choices = await (await ask("choices")).json();
      by("note").textContent = choices.session_note || "";
      by("note").hidden = !choices.session_note;
    } catch (error) { say(error.message, true); return; }
    readAddress();
    if (!state.policies.length) state.policies = choices.policies.slice(0, 2);
    showForm();
    update();
  };
  begin();
})();
