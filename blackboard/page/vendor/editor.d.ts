// What the page uses of editor.js, for TypeScript. Written by us.
export namespace Y {
  class Doc {
    clientID: number
    share: Map<string, any>
    getText (name: string): Text
    getMap (name: string): { toJSON (): unknown }
    getArray (name: string): { toJSON (): unknown }
    on (event: string, told: (...event: any[]) => void): void
    destroy (): void
  }
  class Text { doc: Doc | null; length: number; toString (): string }
  class UndoManager { constructor (text: Text); destroy (): void }
  interface RelativePosition { readonly type: unknown }
  function applyUpdate (doc: Doc, update: Uint8Array): void
  function createRelativePositionFromTypeIndex (text: Text, index: number): RelativePosition
  function createRelativePositionFromJSON (json: unknown): RelativePosition
  function createAbsolutePositionFromRelativePosition (position: RelativePosition, doc: Doc): { index: number, type: unknown } | null
}
export const WebsocketProvider: any
export function yCollab (text: Y.Text, awareness: null, options: { undoManager: Y.UndoManager }): Extension
export const yUndoManagerKeymap: readonly unknown[]
export interface Extension { readonly extension?: unknown }
export const minimalSetup: Extension
export interface View {
  readonly state: State
  readonly hasFocus: boolean
  readonly dom: HTMLElement
  readonly contentDOM: HTMLElement
  dispatch (transaction: object): void
  focus (): void
  destroy (): void
}
export interface State { readonly doc: { readonly length: number, toString (): string }, readonly selection: { readonly main: { readonly anchor: number, readonly head: number } } }
export const EditorView: {
  new (config: { state: State, parent: Node, root: ShadowRoot }): View
  readonly lineWrapping: Extension
  readonly editable: { of (value: boolean): Extension }
  readonly contentAttributes: { of (value: object): Extension }
  theme (rules: object): Extension
}
export const EditorState: {
  create (config: { doc: string, extensions: readonly unknown[] }): State
  readonly readOnly: { of (value: boolean): Extension }
}
export const Annotation: { define (): { of (value: unknown): unknown } }
export const Prec: { high (extension: Extension): Extension }
export interface Range { readonly from: number }
export interface Spot { range (from: number, to?: number): Range }
export const Decoration: {
  readonly none: unknown
  mark (spec: object): Spot
  widget (spec: object): Spot
  set (ranges: readonly Range[], sort: boolean): unknown
}
export const ViewPlugin: { fromClass (plugin: new (view: View) => object, spec: object): Extension }
export class WidgetType { eq (other: this): boolean; toDOM (): HTMLElement }
export const keymap: { of (keys: readonly unknown[]): Extension }
