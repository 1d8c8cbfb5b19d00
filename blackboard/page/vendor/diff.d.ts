// What the page uses of diff.js, for TypeScript. Written by us.
export interface Part { value: string, added: boolean, removed: boolean }
export function diffWordsWithSpace (before: string, after: string, options?: { timeout?: number }): Part[] | undefined
export function diffLines (before: string, after: string, options?: { timeout?: number }): Part[] | undefined
