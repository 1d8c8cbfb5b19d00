// What the page uses of preact.js, for TypeScript. Written by us.
export interface VNode { readonly type: unknown }
export interface Signal<T> { value: T, peek (): T, subscribe (told: (value: T) => void): () => void }
export interface ReadonlySignal<T> { readonly value: T, peek (): T, subscribe (told: (value: T) => void): () => void }
export interface Ref<T> { current: T }
export function html (strings: TemplateStringsArray, ...values: unknown[]): VNode
export function render (node: VNode, parent: Element): void
export function signal<T> (value: T): Signal<T>
export function computed<T> (of: () => T): ReadonlySignal<T>
export function effect (run: () => void | (() => void)): () => void
export function batch<T> (run: () => T): T
export function useSignal<T> (value: T): Signal<T>
export function useComputed<T> (of: () => T): ReadonlySignal<T>
export function useEffect (run: () => void | (() => void), inputs?: readonly unknown[]): void
export function useLayoutEffect (run: () => void | (() => void), inputs?: readonly unknown[]): void
export function useMemo<T> (of: () => T, inputs: readonly unknown[]): T
export function useRef<T> (value: T): Ref<T>
export function useState<T> (value: T | (() => T)): [T, (value: T | ((before: T) => T)) => void]
