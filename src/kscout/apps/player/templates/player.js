"use strict";
(() => {
  const NAMES = ["off", "start", "old", "new"];
  const palette = (player) => {
    const style = getComputedStyle(player);
    return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--mask-${name}`).trim()]));
  };

  const drawStrip = (canvas, colors, data, columns, before, now) => {
    canvas.width = data.nCols;
    const brush = canvas.getContext("2d");
    const paint = (name, list) => {
      brush.fillStyle = colors[name];
      for (const column of list) brush.fillRect(column, 0, 1, 1);
    };
    brush.fillStyle = colors.off;
    brush.fillRect(0, 0, data.nCols, 1);
    paint("start", data.start);
    paint("old", columns.slice(0, before));
    paint("new", columns.slice(before, now));
  };

  const drawKspace = (canvas, picture, colors, measured, pointed) => {
    const brush = canvas.getContext("2d");
    brush.clearRect(0, 0, canvas.width, canvas.height);
    if (picture.complete) {
      for (const column of measured) {
        brush.drawImage(picture, column, 0, 1, canvas.height, column, 0, 1, canvas.height);
      }
    }
    if (pointed >= 0) {
      brush.fillStyle = colors.new;
      brush.fillRect(pointed, 0, 1, canvas.height);
    }
  };

  const drawRatings = (canvas, colors, row, chosen) => {
    canvas.width = row.length;
    const brush = canvas.getContext("2d");
    row.forEach((rating, column) => {
      brush.fillStyle = column === chosen ? colors.new : colors.old;
      const height = Math.round((rating / 255) * canvas.height);
      brush.fillRect(column, canvas.height - height, 1, height);
    });
  };

  const startPlayer = (player) => {
    const data = JSON.parse(player.querySelector("script.data").textContent);
    const slider = player.querySelector("input[type=range]");
    const button = player.querySelector(".play");
    const shown = player.querySelector(".controls output");
    const speed = player.querySelector(".speed");
    const cursor = player.querySelector(".cursor");
    const cards = [...player.querySelectorAll(".card:not(.target)")];
    const lines = [...player.querySelectorAll(".chart polyline")];
    const full = player.querySelector(".target .kspace");
    const last = data.steps.length - 1;
    const end = data.steps[last];
    const pointed = cards.map(() => -1);
    const life = new AbortController();
    const listening = { signal: life.signal };
    let place = 0;
    let timer = 0;

    const tell = (name, detail) => player.dispatchEvent(new CustomEvent(name, { detail, bubbles: true }));
    const ratings = data.policies.map(({ ratings: text }) =>
      text && Uint8Array.from(atob(text), (one) => one.charCodeAt(0)));
    const rating = (index) => ratings[index].subarray(place * data.nCols, (place + 1) * data.nCols);
    const measured = (index) => [...data.start, ...data.policies[index].columns.slice(0, data.steps[place])];
    const showCard = (policy, index) => {
      const card = cards[index];
      const colors = palette(player);
      const now = data.steps[place];
      const before = place > 0 ? data.steps[place - 1] : slider ? 0 : now - 1;
      card.querySelector(".score").textContent = policy.ssim[place].toFixed(4);
      const share = `50% ${last > 0 ? (100 * place) / last : 0}%`;
      for (const picture of card.querySelectorAll("img")) picture.style.objectPosition = share;
      drawStrip(card.querySelector(".strip"), colors, data, policy.columns, before, now);
      if (full) drawKspace(card.querySelector(".kspace"), full, colors, measured(index), pointed[index]);
      if (ratings[index]) drawRatings(card.querySelector(".ratings"), colors, rating(index), policy.columns[now]);
    };
    const show = () => {
      if (slider) {
        const now = data.steps[place];
        slider.value = place;
        shown.textContent = `step ${now} of ${end}`;
        slider.setAttribute("aria-valuetext", shown.textContent);
        const x = 6 + (588 * now) / Math.max(end, 1);
        cursor.setAttribute("x1", x);
        cursor.setAttribute("x2", x);
      }
      data.policies.forEach(showCard);
      tell("step", { place, playing: timer !== 0 });
    };
    const stop = () => {
      if (!timer) return;
      clearInterval(timer);
      timer = 0;
      button.setAttribute("aria-label", "Play");
      button.firstElementChild.textContent = "▶";
      tell("step", { place, playing: false });
    };
    const advance = () => {
      if (place >= last) { stop(); return; }
      place += 1;
      show();
    };
    const go = (wanted) => {
      stop();
      place = Math.min(Math.max(wanted, 0), last);
      show();
    };
    const play = () => {
      if (place >= last) { place = 0; show(); }
      button.setAttribute("aria-label", "Pause");
      button.firstElementChild.textContent = "❚❚";
      timer = setInterval(advance, speed ? Number(speed.value) : 600);
    };
    const point = (index, column) => {
      const inside = column >= 0 && column < data.nCols;
      pointed[index] = inside ? column : -1;
      const canvas = cards[index].querySelector(".kspace");
      const known = measured(index).includes(column);
      const share = ratings[index] && !known ? `, rated ${Math.round(rating(index)[column] / 2.55)} % of the best` : "";
      const words = inside ? `column ${column}${known ? ", measured" : share}` : "";
      canvas.setAttribute("aria-valuenow", inside ? column : Math.floor(data.nCols / 2));
      canvas.setAttribute("aria-valuetext", words);
      cards[index].querySelector(".pointed").textContent = words;
      showCard(data.policies[index], index);
    };
    const take = (index) => {
      const column = pointed[index];
      if (column < 0 || measured(index).includes(column)) return;
      const before = data.policies[index].columns.slice(0, data.steps[place]);
      tell("column", { columns: [...before, column] });
    };
    const steer = (card, index) => {
      const canvas = card.querySelector(".kspace");
      const under = (event) => Math.floor((event.offsetX / canvas.clientWidth) * data.nCols);
      canvas.addEventListener("pointermove", (event) => point(index, under(event)));
      canvas.addEventListener("pointerleave", () => point(index, -1));
      canvas.addEventListener("click", (event) => { point(index, under(event)); take(index); });
      canvas.addEventListener("blur", () => point(index, -1));
      canvas.addEventListener("keydown", (event) => {
        const at = pointed[index] < 0 ? Math.floor(data.nCols / 2) : pointed[index];
        const wanted = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: data.nCols - 1 }[event.key];
        if (wanted !== undefined) point(index, Math.min(Math.max(wanted, 0), data.nCols - 1));
        else if (event.key === "Enter" || event.key === " ") take(index);
        else return;
        event.preventDefault();
      });
    };
    player.querySelectorAll(".choice input").forEach((box, index) => {
      const choose = () => {
        cards[index].hidden = !box.checked;
        if (lines.length) lines[index].classList.toggle("off", !box.checked);
      };
      box.addEventListener("change", choose);
      choose();
    });
    if (slider) {
      slider.max = last;
      button.addEventListener("click", () => { if (timer) stop(); else play(); });
      slider.addEventListener("input", () => go(Number(slider.value)));
      addEventListener("beforeprint", () => go(last), listening);
    }
    if (speed) speed.addEventListener("change", () => { if (timer) { stop(); play(); } });
    if (full && player.classList.contains("steered")) cards.forEach(steer);
    if (full && !full.complete) full.addEventListener("load", show);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show, listening);
    show();
    const close = () => { stop(); life.abort(); };
    return { go, play, close, last, get place() { return place; } };
  };
  document.querySelectorAll(".player").forEach(startPlayer);
  window.kscoutPlayer = startPlayer;
})();
