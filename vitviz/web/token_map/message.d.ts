// The messages between a host and the component. A host mounts the component twice: one mount gets a
// StackMessage, the numbers, sent once; the other a ViewMessage, what to show of them. Choices come
// back as a Commit. Frames, heads and tokens count from 0, prefix tokens first.

export type Kind = "share" | "cosine"; // shares of attention from 0 to 1, or cosines from -1 to 1
export type Direction = "row" | "column"; // of A: the token is a query, or it is a key
export type Box = [left: number, top: number, right: number, bottom: number]; // picture's pixels

export interface StackMessage {
  stack: StackInfo;
  codes: Uint8Array; // of each frame (heads, queries, keys)
  peaks: Float32Array; // (heads, queries): the largest value over the patches
  prefix: Float32Array; // (heads, queries, prefix tokens)
  places: Int32Array; // of a frame with windows: the window of each query, then (windows, keys)
}

export interface StackInfo {
  id: string;
  kind: Kind;
  frames: FrameInfo[];
  picture: string; // its address
}

export interface FrameInfo {
  index: number;
  heads: number;
  queries: number;
  keys: number; // patches that a query meets
  rows: number;
  cols: number;
  keyRows: number;
  keyCols: number;
  prefixTokens: number;
  windows: number; // 0 where every query meets every patch
  firstCode: number; // where the frame begins in each of the four arrays
  firstRow: number;
  firstPrefix: number;
  firstPlace: number;
}

export interface ViewMessage {
  stackId: string;
  session: string; // versions of two sessions are not to be compared
  version: number; // of the last Commit that the host knows
  state: State;
  kind: Kind;
  strip: "heads" | "frames"; // what the small maps are
  frames: Shape[];
  titles: {
    row: string; column?: string; strip: string; slider?: string; photo?: string;
    caption?: string; hint?: string; // below the photo
  };
  alone: boolean; // whether it takes keys pressed anywhere on the page
  link: string; // views with the same link show one place on one scale; empty for none
  matches: Matches | null; // where the keys lie in another picture
  picture: {
    width: number; height: number;
    crop: Box; // what the model saw
    area?: Box; // what is drawn; where left out, all of it, or the crop of a wide one in a row
  };
  tools: string[] | null; // the names of the controls that are drawn; null for all
  matrix?: boolean; // draw the whole of A beside the map, and of the picture only the crop
  beside?: Beside[]; // other maps of the same patches, in a row with the map
  guess: Guess | null; // a patch that was guessed before the map was shown
  distance: Distance | null;
  lut: string; // 256 colours from the least to the most, six hexadecimal digits each
  queryColour: string;
  keyColour: string;
  provenance: string; // goes into each picture that is saved
  strings: Record<string, string>; // of another language, by the English ones
}

export interface State {
  frame: number;
  head: number; // -1 is the mean of heads
  query: number; // the token chosen, a key where columns are read; -1 is the mean of the patches
  pinned: boolean; // whether it was chosen, and the pointer shows others for as long as it stays
  direction: Direction;
  view: "heat" | "spotlight";
  scale: "map" | "shared" | "log";
  leaveOut: boolean; // the token chosen, out of the scale
  smooth: boolean;
}

export type Commit = State & { version: number };

export interface Shape {
  name: string; // of the frame
  rows: number;
  cols: number;
  keyRows: number;
  keyCols: number;
  crop: Box; // where the grid of the queries lies
  keyCrop: Box;
  prefix: string[];
  home: number; // the query while none is chosen
  heads: number;
  prefixOnly: boolean; // whether the first prefix token alone is a query
  equalShare: number | null; // what each key has where all are looked at alike
  within: boolean; // whether that is in a window
}

export interface Beside { // a map of shares, not among the frames, of the state that came with it
  title: string;
  note: string; // how it compares with the map
  words: string; // for a screen reader
  values: number[]; // of each patch
}

export interface Guess { // outlined on maps of this grid
  patch: number;
  rows: number;
  cols: number;
}

export interface Matches { // of each query in the other picture
  nearest: number[][]; // the patches that are most similar, these first
  mutual: boolean[]; // whether the query is the most similar to the first of them
  back: number[][]; // of each patch of the other picture, the queries that are most similar
}

export interface Distance { // in pixels; null where there is none
  values: (number | null)[][]; // by layer and head
  equal: (number | null)[]; // of a layer that looks at all keys alike
  side: number; // of the model's input
}
