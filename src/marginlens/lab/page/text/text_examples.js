// Texts to begin with: rhymes that repeat themselves, and the sequences of a figure.

const JACK_LINES = [
  "the house that Jack built",
  "the malt that lay in",
  "the rat that ate",
  "the cat that killed",
  "the dog that worried",
  "the cow with the crumpled horn that tossed",
  "the maiden all forlorn that milked",
  "the man all tattered and torn that kissed",
];

/** A rhyme in which each verse says all the verses before it. */
function cumulative(lines) {
  return lines.map((_, n) => `This is ${lines.slice(0, n + 1).reverse().join(" ")}.`).join("\n");
}

/** { name, text }: the parts of `state.text` that an example sets; the page opens with the first. */
export const TEXT_EXAMPLES = [
  {
    name: "The house that Jack built, word by word",
    text: {
      source: cumulative(JACK_LINES),
      unit: "words",
      window: 24,
      last: "that",
      prompt: "This is the house that Jack built. This is the malt that lay in the house that Jack built. This is the",
      count: 40,
      draw: "random",
      seed: 1,
    },
  },
  {
    name: "The woodchuck, word by word",
    text: {
      source:
        "How much wood would a woodchuck chuck if a woodchuck could chuck wood? He would chuck, he would, as much as he could, and chuck as much wood as a woodchuck would if a woodchuck could chuck wood.",
      unit: "words",
      window: 24,
      last: "chuck",
      prompt: "How much wood would a woodchuck chuck if a woodchuck could chuck wood? He would chuck, he would, as much",
      count: 30,
      draw: "random",
      seed: 1,
    },
  },
  {
    name: "Cats and dogs, letter by letter",
    text: {
      source: "the cat sat on the mat. the dog sat on the rug. the cat saw the dog, and the dog saw the cat.",
      unit: "characters",
      window: 16,
      last: "t",
      prompt: "the cat sat on t",
      count: 30,
      draw: "likely",
      seed: 1,
    },
  },
  {
    name: "Seven sequences over four tokens (C Figure 2)",
    text: {
      source: "",
      sequences: {
        names: ["e1", "e2", "e3", "e4"],
        samples: [[1, 3, 0], [2, 1, 0], [0, 2, 0], [2, 0, 1], [0, 3, 1], [1, 2, 1], [0, 3, 1]],
        labels: [3, 1, 2, 2, 0, 1, 1],
      },
      last: "e2",
      prompt: "e3 e1 e2",
      count: 20,
      draw: "random",
      seed: 1,
    },
  },
];
