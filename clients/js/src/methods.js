// Written by `python -m tools.js_methods` from blackboard/wire/methods.py: change that instead.


/**
 * The msgpack of a value, as the board keeps it.
 * @typedef {Uint8Array} Encoded
 */

/**
 * `rights` on every key that `pattern` matches.
 * @typedef {object} AccessGrant
 * @property {string} pattern
 * @property {Array<Right>} rights
 */

/**
 * How many commits each agent made after revision `after`, up to `until` (null = now), counted in
 * `parts` of that span.
 * @typedef {object} ActivityParams
 * @property {string} board
 * @property {number} [after]
 * @property {number | null} [until]
 * @property {number} [parts]
 * @property {string | null} [agent]
 */

/**
 * The commits that may be seen after revision `after`, up to `until`, counted in parts of `step`
 * revisions.
 * `times_ms` are the times of the newest commit of each part (0 = it has none). `authors` are the
 * most active ones, by name; `more_authors` says whether there are others. `epochs` began in the
 * span.
 * @typedef {object} ActivityResult
 * @property {number} after
 * @property {number} until
 * @property {number} step
 * @property {Array<number>} times_ms
 * @property {Array<AuthorActivity>} authors
 * @property {boolean} more_authors
 * @property {Array<Epoch>} epochs
 */

/**
 * Add `value` as the next item below `prefix`: `<prefix>/<next index, ten digits>`.
 * Indexes never repeat, not even after items were deleted.
 * @typedef {object} Append
 * @property {'append'} kind
 * @property {string} prefix
 * @property {Encoded} value
 * @property {number | null} [ttl_ms]
 */

/**
 * A record of the audit. Pass its `key` to continue after it.
 * @typedef {object} AuditMessage
 * @property {string} key
 * @property {number} time_ms
 * @property {string} principal
 * @property {string} token
 * @property {string} verb
 * @property {string} board
 * @property {string} what
 * @property {string} outcome
 * @property {string} writer
 * @property {number} number
 * @property {string} previous
 * @property {number} count
 * @property {string} sealed_with
 * @property {string} seal
 * @property {string} checked
 */

/**
 * A page of the audit, after the record with key `after`.
 * @typedef {object} AuditParams
 * @property {string | null} [after]
 * @property {number} [limit]
 * @property {string | null} [agent]
 */

/**
 * The commits of one author in each part of a span.
 * @typedef {object} AuthorActivity
 * @property {string} author
 * @property {Array<number>} commits
 */

/**
 * How the attached agents answered a checkpoint that asked for their state at `asked`.
 * Each of them delivered it (`delivered`), left in the meantime (`left`), or did neither
 * (`not_fresh`).
 * @typedef {object} BarrierReport
 * @property {number} asked
 * @property {Array<string>} delivered
 * @property {Array<string>} not_fresh
 * @property {Array<string>} left
 */

/**
 * Names of the boards that you may use.
 * @typedef {object} BoardsParams
 * @property {string | null} [agent]
 */

/**
 * Make board `new`, which begins with the content of this one at a moment.
 * @typedef {object} BranchParams
 * @property {string} board
 * @property {string} new
 * @property {number | string | Instant} at
 * @property {string} request
 * @property {string} [note]
 * @property {string | null} [agent]
 */

/**
 * The head of a board: its newest revision, its epoch, and the oldest revision in the log.
 * The log holds `log_entries` entries, `oldest`..`revision`; an empty log has `oldest == revision
 * + 1`. (Where an epoch began, revisions were skipped, so the span can be wider than the count.)
 * @typedef {object} BranchResult
 * @property {number} revision
 * @property {Epoch} epoch
 * @property {number} oldest
 * @property {number} time_ms
 * @property {number} log_entries
 */

/**
 * The watch has ended because of `error`.
 * @typedef {object} CancelledNotice
 * @property {number} watch
 * @property {ErrorMessage} error
 */

/**
 * One commit of the result of `why`. `account` is present if the author's name was narrowed from
 * it.
 * @typedef {object} CauseMessage
 * @property {string} key
 * @property {number} revision
 * @property {number} depth
 * @property {string} author
 * @property {number} time_ms
 * @property {string} note
 * @property {Array<[string, number]>} based_on
 * @property {string} missing
 * @property {string} [account]
 */

/**
 * One absolute effect on a key (`value`) or a lease (`lease`).
 * @typedef {object} ChangeMessage
 * @property {string} kind
 * @property {string} key
 * @property {Encoded} [value]
 * @property {number} [expires_at_ms]
 * @property {number} [item]
 * @property {LeaseMessage} [lease]
 */

/**
 * A delivery of a watch. Without revisions it is a progress mark: everything up to `position` was
 * delivered. With `more`, the last revision continues in the next `changes` of the watch, and
 * `position` is valid only after that.
 * @typedef {object} ChangesNotice
 * @property {number} watch
 * @property {string} position
 * @property {Array<RevisionMessage>} revisions
 * @property {boolean} [more]
 */

/**
 * A named revision of a board: when it was taken, by whom and why; `kind` says for what.
 * @typedef {object} Checkpoint
 * @property {string} board
 * @property {string} name
 * @property {number} revision
 * @property {number} time_ms
 * @property {string} kind
 * @property {string} by
 * @property {string} note
 * @property {BarrierReport | null} [barrier]
 * @property {boolean} pinned
 */

/**
 * Name the present revision; with `barrier_ms`, once every agent has delivered its state.
 * @typedef {object} CheckpointParams
 * @property {string} board
 * @property {string} name
 * @property {string} request
 * @property {string} [note]
 * @property {number | null} [barrier_ms]
 * @property {boolean} [stale_ok]
 * @property {boolean} [automatic]
 * @property {string | null} [agent]
 */

/**
 * A named revision of a board: when it was taken, by whom and why; `kind` says for what.
 * @typedef {object} CheckpointResult
 * @property {string} board
 * @property {string} name
 * @property {number} revision
 * @property {number} time_ms
 * @property {string} kind
 * @property {string} by
 * @property {string} note
 * @property {BarrierReport | null} [barrier]
 * @property {boolean} pinned
 */

/**
 * A page of the checkpoints above revision `after`, the oldest first.
 * @typedef {object} CheckpointsParams
 * @property {string} board
 * @property {number} [after]
 * @property {number} [limit]
 * @property {string | null} [agent]
 */

/**
 * Names a commit of the agent, so that a retry is recognised.
 * @typedef {object} CommitName
 * @property {number} lane
 * @property {string} incarnation
 * @property {number} step
 */

/**
 * One attempt of an atomic commit.
 * @typedef {object} CommitParams
 * @property {string} board
 * @property {CommitName} id
 * @property {string} epoch
 * @property {Array<Put | Delete | DeletePrefix | Append | Increment | Grant | Renew | Release | Expire>} ops
 * @property {Array<KeyAt | PrefixUnchanged>} [conditions]
 * @property {Array<HeldFence>} [fences]
 * @property {Array<[string, number]>} [based_on]
 * @property {string} [note]
 * @property {number | null} [known]
 * @property {number | null} [retry_since]
 * @property {string | null} [agent]
 */

/**
 * Result of `commit`. `results` are what the operations computed; `level` says what the commit
 * survives.
 * @typedef {object} CommitResult
 * @property {number} revision
 * @property {number} time_ms
 * @property {Array<number | string | Array<string | number> | null>} results
 * @property {string} level
 * @property {boolean} [duplicate]
 */

/**
 * Remove `key`. Removing an absent key changes nothing and is not an error.
 * A commit that only deletes absent keys makes no revision, unless it is a retry.
 * @typedef {object} Delete
 * @property {'delete'} kind
 * @property {string} key
 */

/**
 * Remove every key below `prefix`. Refused when a commit's operations of this kind remove more
 * than OPERATIONS_MAX keys in all.
 * @typedef {object} DeletePrefix
 * @property {'delete_prefix'} kind
 * @property {string} prefix
 */

/**
 * A key that two moments do not hold alike; a side that is absent held nothing.
 * @typedef {object} DifferenceMessage
 * @property {string} key
 * @property {EntryMessage} [before]
 * @property {EntryMessage} [after]
 */

/**
 * A page of what differs between two moments; `b` may be one of board `other`.
 * @typedef {object} DifferencesParams
 * @property {string} board
 * @property {number | string | Instant} a
 * @property {number | string | Instant} b
 * @property {string | null} [other]
 * @property {string} [pattern]
 * @property {string | null} [after]
 * @property {number} [limit]
 * @property {string | null} [agent]
 */

/**
 * Result of `differences`: the revisions compared; `next_key` continues.
 * @typedef {object} DifferencesResult
 * @property {number} a
 * @property {number} b
 * @property {Array<DifferenceMessage>} differences
 * @property {string} [next_key]
 */

/**
 * A prefix with keys below it: how many, up to DIRECTORY_KEYS_MAX, and whether there are more.
 * @typedef {object} Directory
 * @property {string} prefix
 * @property {number} keys
 * @property {boolean} more
 */

/**
 * What a key holds. `account` is present if the author's name was narrowed from it, `created_ms`
 * if the key was written again since and the time of `create_revision` is known.
 * @typedef {object} EntryMessage
 * @property {string} key
 * @property {Encoded} value
 * @property {number} mod_revision
 * @property {number} create_revision
 * @property {string} author
 * @property {number} time_ms
 * @property {number} [expires_at_ms]
 * @property {string} [account]
 * @property {number} [created_ms]
 */

/**
 * A stretch of a board's history that nobody rewrote.
 * `number` counts from 1; `id` is random, so that two engines never share one. `cause` is one of
 * the constants below; `from_revision` is the last revision before it that still counts (for a
 * restore: the one whose content came back); `revision` is that of its first log entry (0 for the
 * first epoch).
 * @typedef {object} Epoch
 * @property {number} number
 * @property {string} id
 * @property {string} cause
 * @property {number} from_revision
 * @property {number} revision
 */

/**
 * Destroy the data keys of an agent's namespaces, on one board or on all, for good. With
 * `request`, a copy of it that comes late destroys no newer key.
 * @typedef {object} EraseParams
 * @property {string} name
 * @property {string | null} [board]
 * @property {string | null} [request]
 * @property {string | null} [agent]
 */

/**
 * Result of `erase` and `rewrap`: the number of data keys that were destroyed or rewrapped.
 * @typedef {object} EraseResult
 * @property {number} keys
 */

/**
 * The stable code of an error and its fields.
 * @typedef {object} ErrorData
 * @property {string} code
 * @property {Record<string, unknown>} fields
 */

/**
 * The `error` of a response, and of `cancelled`.
 * @typedef {object} ErrorMessage
 * @property {number} code
 * @property {ErrorData} data
 * @property {string} message
 */

/**
 * As Release, by any principal, of a lease that has expired by the engine's clock; else LeaseHeld.
 * @typedef {object} Expire
 * @property {'expire'} kind
 * @property {string} key
 * @property {string} holder
 * @property {number} fence
 */

/**
 * A page of a checkpoint, every namespace of it.
 * @typedef {object} ExportParams
 * @property {string} board
 * @property {string} name
 * @property {string | null} [after]
 * @property {string | null} [agent]
 */

/**
 * Result of `export`; the first page has the manifest, its signature and the counters.
 * @typedef {object} ExportResult
 * @property {number} revision
 * @property {Array<EntryMessage>} entries
 * @property {string} [next_key]
 * @property {string} [manifest]
 * @property {string} [signature]
 * @property {Array<[string, number]>} [items]
 */

/**
 * A freeze of a board: by whom, why, since when (the engine's clock), as which revision.
 * @typedef {object} Freeze
 * @property {string} by
 * @property {string} note
 * @property {number} since_ms
 * @property {number} revision
 */

/**
 * Refuse commits until the board is thawed; a frozen board stays as it is. With `known`, the
 * revision at which the request is made, a copy that comes after a later freeze is refused.
 * @typedef {object} FreezeParams
 * @property {string} board
 * @property {string} [note]
 * @property {number | null} [known]
 * @property {string | null} [agent]
 */

/**
 * A freeze of a board: by whom, why, since when (the engine's clock), as which revision.
 * @typedef {object} FreezeResult
 * @property {string} by
 * @property {string} note
 * @property {number} since_ms
 * @property {number} revision
 */

/**
 * Grant lease `key` to `holder` for `ttl_ms`; its fence is the commit's revision.
 * If it is held, by the engine's clock: with `wait` the holder joins the end of its queue, with a
 * ticket that is valid for `ttl_ms`; without, LeaseHeld. A holder has it, or waits for it, once.
 * @typedef {object} Grant
 * @property {'grant'} kind
 * @property {string} key
 * @property {string} holder
 * @property {number} ttl_ms
 * @property {boolean} [wait]
 */

/**
 * Rights on every key that a pattern matches.
 * @typedef {object} GrantMessage
 * @property {string} pattern
 * @property {Array<string>} rights
 */

/**
 * The head of a board: its newest revision, its epoch, and the oldest revision in the log.
 * The log holds `log_entries` entries, `oldest`..`revision`; an empty log has `oldest == revision
 * + 1`. (Where an epoch began, revisions were skipped, so the span can be wider than the count.)
 * @typedef {object} Head
 * @property {number} revision
 * @property {Epoch} epoch
 * @property {number} oldest
 * @property {number} time_ms
 * @property {number} log_entries
 */

/**
 * Where the board stands.
 * @typedef {object} HeadParams
 * @property {string} board
 * @property {string | null} [agent]
 */

/**
 * The head of a board: its newest revision, its epoch, and the oldest revision in the log.
 * The log holds `log_entries` entries, `oldest`..`revision`; an empty log has `oldest == revision
 * + 1`. (Where an epoch began, revisions were skipped, so the span can be wider than the count.)
 * @typedef {object} HeadResult
 * @property {number} revision
 * @property {Epoch} epoch
 * @property {number} oldest
 * @property {number} time_ms
 * @property {number} log_entries
 */

/**
 * The commit relies on lease `key` as granted to `holder` at revision `fence`.
 * @typedef {object} HeldFence
 * @property {string} key
 * @property {string} holder
 * @property {number} fence
 */

/**
 * The first request of a connection. `token` is needed unless a header carried it.
 * @typedef {object} HelloParams
 * @property {string | null} [token]
 * @property {string} [client]
 * @property {string | null} [agent]
 */

/**
 * Result of `hello`: who you are, the service that answers, and its limits.
 * `account` is the account for which `agent` acts: for a narrowed token, the one to which the
 * original token was issued.
 * @typedef {object} HelloResult
 * @property {string} principal
 * @property {string} agent
 * @property {string} account
 * @property {string} engine
 * @property {string} level
 * @property {number} server_time_ms
 * @property {string} version
 * @property {Record<string, number>} limits
 * @property {boolean} traces
 */

/**
 * Versions of `key`, the newest first; `before` continues. Only those above `after`, and of
 * `author`, if given.
 * @typedef {object} HistoryParams
 * @property {string} board
 * @property {string} key
 * @property {number | null} [before]
 * @property {number} [limit]
 * @property {number | null} [after]
 * @property {string | null} [author]
 * @property {string | null} [agent]
 */

/**
 * Begin to make a board from an export; `signature` is in hexadecimal.
 * @typedef {object} ImportBeginParams
 * @property {string} board
 * @property {string} request
 * @property {string} manifest
 * @property {string} signature
 * @property {Array<[string, number]>} [items]
 * @property {string} [note]
 * @property {string | null} [agent]
 */

/**
 * After the last page: the board exists, if the digests match the manifest.
 * @typedef {object} ImportEndParams
 * @property {string} board
 * @property {string} request
 * @property {string | null} [agent]
 */

/**
 * The head of a board: its newest revision, its epoch, and the oldest revision in the log.
 * The log holds `log_entries` entries, `oldest`..`revision`; an empty log has `oldest == revision
 * + 1`. (Where an epoch began, revisions were skipped, so the span can be wider than the count.)
 * @typedef {object} ImportEndResult
 * @property {number} revision
 * @property {Epoch} epoch
 * @property {number} oldest
 * @property {number} time_ms
 * @property {number} log_entries
 */

/**
 * The next page of an import, counted from 0.
 * @typedef {object} ImportPageParams
 * @property {string} board
 * @property {string} request
 * @property {number} number
 * @property {Array<ImportedEntry>} entries
 * @property {string | null} [agent]
 */

/**
 * An entry as it was exported.
 * @typedef {object} ImportedEntry
 * @property {string} key
 * @property {Encoded} value
 * @property {number} mod_revision
 * @property {number} create_revision
 * @property {string} author
 * @property {number} time_ms
 * @property {number | null} [expires_at_ms]
 * @property {number | null} [created_ms]
 */

/**
 * Add `by` to the integer at `key` (absent = 0); |result| <= INTEGER_MAX.
 * @typedef {object} Increment
 * @property {'increment'} kind
 * @property {string} key
 * @property {number} by
 */

/**
 * A point in time; as a moment, the newest revision that was committed then or before.
 * @typedef {object} Instant
 * @property {number} time_ms
 */

/**
 * A token for the agent `name`, valid for `ttl_ms` or as long as the token in use; `grants` null =
 * an agent's default ones.
 * @typedef {object} IssueParams
 * @property {string} name
 * @property {Array<AccessGrant> | null} [grants]
 * @property {Array<string>} [boards]
 * @property {number} [ttl_ms]
 * @property {string | null} [agent]
 */

/**
 * Result of `issue`: the token, which is stored nowhere.
 * @typedef {object} IssueResult
 * @property {string} token
 */

/**
 * `key` was last written at `revision`; ABSENT (0) = does not exist, PRESENT (-1) = exists.
 * @typedef {object} KeyAt
 * @property {'key_at'} kind
 * @property {string} key
 * @property {number} revision
 */

/**
 * A granted lease, with its waiters in order.
 * @typedef {object} LeaseMessage
 * @property {string} key
 * @property {string} holder
 * @property {number} fence
 * @property {number} until_ms
 * @property {Array<WaiterMessage>} [waiters]
 * @property {number} [ttl_ms]
 */

/**
 * A page of the leases whose keys match `pattern`, with their queues, after key `after`.
 * @typedef {object} LeasesParams
 * @property {string} board
 * @property {string} pattern
 * @property {string | null} [after]
 * @property {number} [limit]
 * @property {string | null} [agent]
 */

/**
 * Result of `leases`; `next_key` continues a listing that was cut short.
 * @typedef {object} LeasesResult
 * @property {number} revision
 * @property {string} epoch
 * @property {Array<LeaseMessage>} leases
 * @property {string} [next_key]
 */

/**
 * A page of the entries that match `pattern`, in key order, after key `after`; with `at`, as they
 * were then.
 * With `reverse` in descending order: keys before `after`. With `keys_only` each value is empty.
 * With `delimiter` "/", `pattern` being PREFIX/** or **, only what lies directly below; what lies
 * deeper is counted by directory, and `limit` counts both. If `after` lies in a directory, the
 * whole of it is skipped.
 * @typedef {object} ListParams
 * @property {string} board
 * @property {string} pattern
 * @property {string | null} [after]
 * @property {number} [limit]
 * @property {number | string | Instant | null} [at]
 * @property {boolean} [reverse]
 * @property {boolean} [keys_only]
 * @property {string | null} [delimiter]
 * @property {string | null} [agent]
 */

/**
 * Result of `read` and `list`; `next_key` continues a listing that was cut short, `directories`
 * belong to one with `delimiter`.
 * @typedef {object} ListResult
 * @property {number} revision
 * @property {string} epoch
 * @property {Array<EntryMessage>} entries
 * @property {string} [next_key]
 * @property {Array<Directory>} [directories]
 */

/**
 * A page of the log after revision `after`: `limit` revisions are looked through, those that match
 * are shown; with `proofs`, one proof for each of them.
 * @typedef {object} LogParams
 * @property {string} board
 * @property {number} [after]
 * @property {number} [limit]
 * @property {string | null} [pattern]
 * @property {string | null} [author]
 * @property {boolean} [proofs]
 * @property {string | null} [agent]
 */

/**
 * Result of `log`: the readable part of the entries up to `through`, and the board's head.
 * `proofs`, if requested, has one item per revision; null where there is none.
 * @typedef {object} LogResult
 * @property {Head} head
 * @property {Array<RevisionMessage>} revisions
 * @property {number} through
 * @property {Array<ProofMessage | null>} [proofs]
 */

/**
 * A board whose archive has revisions after `survived`, up to `through`, that its engine lost;
 * with `survived` 0 the engine has nothing of it.
 * `apart_from` is the name that the board had before it was set apart (`main` for `main~1`).
 * @typedef {object} LostBoard
 * @property {string} board
 * @property {number} survived
 * @property {number} through
 * @property {string} apart_from
 */

/**
 * Boards of which the archive has what their engine lost, for admins of everything.
 * @typedef {object} LostBoardsParams
 * @property {string | null} [agent]
 */

/**
 * A checkpoint with the content of its signed manifest.
 * @typedef {object} ManifestParams
 * @property {string} board
 * @property {string} name
 * @property {string | null} [agent]
 */

/**
 * Result of `manifest`; hashes in hexadecimal, `digests` by namespace, `steps` by agent, and
 * likewise `memory`, if there was a barrier.
 * @typedef {object} ManifestResult
 * @property {Checkpoint} checkpoint
 * @property {Epoch} epoch
 * @property {string} chain
 * @property {string} previous
 * @property {Record<string, string>} digests
 * @property {Record<string, number>} steps
 * @property {Record<string, unknown>} declared
 * @property {string} signed_by
 * @property {Record<string, number>} [memory]
 */

/**
 * Keep a checkpoint from being pruned, or no longer.
 * @typedef {object} PinParams
 * @property {string} board
 * @property {string} name
 * @property {boolean} pinned
 * @property {string | null} [agent]
 */

/**
 * No key below `prefix` was written or removed after revision `since`.
 * A whole namespace (`public`) does not include its runtime branches, whose names begin with `~`:
 * presences, for instance, change all the time. A prefix that names such a branch includes it.
 * Refused (LimitExceeded) when more than OPERATIONS_MAX keys, live or recently removed, lie below
 * all such prefixes of one commit.
 * @typedef {object} PrefixUnchanged
 * @property {'prefix_unchanged'} kind
 * @property {string} prefix
 * @property {number} since
 */

/**
 * Ask a watch for a progress mark.
 * @typedef {object} ProgressParams
 * @property {number} watch
 * @property {string | null} [agent]
 */

/**
 * What is needed, in addition to the visible part of a revision, to compute its digest: the
 * `salts` of its changes, in `contents` the SHA-256 of each value that is stored encrypted, and
 * the `leaves` of everything else; in hexadecimal.
 * @typedef {object} ProofMessage
 * @property {Array<string>} salts
 * @property {Array<string | null>} contents
 * @property {Array<string>} leaves
 */

/**
 * Remove the checkpoints, and the history, that a policy does not keep.
 * @typedef {object} PruneParams
 * @property {string} board
 * @property {number} last
 * @property {number} days
 * @property {boolean} [named]
 * @property {number | null} [history_ms]
 * @property {number | null} [history_bytes]
 * @property {boolean} [dry_run]
 * @property {string | null} [agent]
 */

/**
 * What pruning removed, or would remove: checkpoints by name, and versions of keys with the bytes
 * of their values, as they were stored; None if the policy bounds no history.
 * @typedef {object} PruneResult
 * @property {Array<string>} removed
 * @property {Array<string>} kept
 * @property {number} versions
 * @property {number | null} [value_bytes]
 */

/**
 * Set `key` to `value`; with `ttl_ms` the entry expires that long after the commit.
 * @typedef {object} Put
 * @property {'put'} kind
 * @property {string} key
 * @property {Encoded} value
 * @property {number | null} [ttl_ms]
 */

/**
 * Entries of some keys as of one revision; with `at`, as they were then.
 * @typedef {object} ReadParams
 * @property {string} board
 * @property {Array<string>} keys
 * @property {number | string | Instant | null} [at]
 * @property {string | null} [agent]
 */

/**
 * Result of `read` and `list`; `next_key` continues a listing that was cut short, `directories`
 * belong to one with `delimiter`.
 * @typedef {object} ReadResult
 * @property {number} revision
 * @property {string} epoch
 * @property {Array<EntryMessage>} entries
 * @property {string} [next_key]
 * @property {Array<Directory>} [directories]
 */

/**
 * Let a board that its engine lost begin again with the content of its archive: the newest
 * revision that was lost, or the moment `at`. Repeat the request until it is done.
 * @typedef {object} RecoverParams
 * @property {string} board
 * @property {number | string | Instant | null} [at]
 * @property {string} [note]
 * @property {string | null} [agent]
 */

/**
 * The result of a recovery: since `revision`, which begins `epoch`, the engine holds what the
 * archive has of `from_revision`.
 * Until it is `done`, `revision` and `epoch` are the planned ones, or 0 and "" while they are
 * unknown; `entries` counts what was put into the engine so far.
 * @typedef {object} RecoverResult
 * @property {boolean} done
 * @property {number} entries
 * @property {number} from_revision
 * @property {number} revision
 * @property {string} epoch
 */

/**
 * Remove every value that `key` ever had from the board and from all that shares its history.
 * Repeat with the same `request` until it is done. With `known`, the revision at which the request
 * is made, a copy that comes after a later redaction of the key removes nothing.
 * @typedef {object} RedactParams
 * @property {string} board
 * @property {string} key
 * @property {string} request
 * @property {string} [why]
 * @property {number | null} [known]
 * @property {string | null} [agent]
 */

/**
 * A redaction and its progress: the `step` it has reached, until it is `done`.
 * `boards` has the named boards that hold or held the key; `versions` and `guessable` are as in
 * `RedactedRows`; `left` says what remains to be done by hand, if anything.
 * @typedef {object} RedactResult
 * @property {boolean} done
 * @property {string} step
 * @property {Array<string>} boards
 * @property {number} versions
 * @property {number} guessable
 * @property {Array<string>} left
 */

/**
 * Continue with a new token of the same principal, before the one in use runs out.
 * @typedef {object} RefreshParams
 * @property {string} token
 * @property {string | null} [agent]
 */

/**
 * Result of `whoami`: the principal of the token, and the agent that the connection acts as.
 * `grants` are the principal's; an empty list of boards means all of them.
 * @typedef {object} RefreshResult
 * @property {string} principal
 * @property {string} agent
 * @property {Array<GrantMessage>} grants
 * @property {Array<string>} boards
 * @property {number} [expires_at_ms]
 */

/**
 * The newest refused commits above number `after`, as far as this process remembers them.
 * @typedef {object} RefusalsParams
 * @property {string} board
 * @property {number} [after]
 * @property {string | null} [agent]
 */

/**
 * A commit of `author` that was refused: `code` and `message` of the error, the `key` that it
 * speaks of and who was in the way (`by`), if any, and the commit's note.
 * `number` counts the refusals of a board in one process.
 * @typedef {object} RefusedCommit
 * @property {number} number
 * @property {number} time_ms
 * @property {string} author
 * @property {string} code
 * @property {string} message
 * @property {string} key
 * @property {string} by
 * @property {string} note
 */

/**
 * End lease `key`, and grant it to the first waiter; Fenced unless (fence, holder) is current.
 * With fence 0: `holder` leaves the queue; Fenced if it does not wait.
 * @typedef {object} Release
 * @property {'release'} kind
 * @property {string} key
 * @property {string} holder
 * @property {number} fence
 */

/**
 * Remove a board for good, with its log and its archived history; what branches share stays. With
 * `epoch`, only if the board is still in that epoch, "" = if there is none.
 * @typedef {object} RemoveParams
 * @property {string} board
 * @property {string | null} [epoch]
 * @property {string | null} [agent]
 */

/**
 * Prolong lease `key` to `ttl_ms` from now; Fenced unless (fence, holder) is current.
 * With fence 0: prolong the ticket of the waiting `holder`; Fenced if it does not wait. A commit
 * that only renews makes no revision, unless it changes a time to live.
 * @typedef {object} Renew
 * @property {'renew'} kind
 * @property {string} key
 * @property {string} holder
 * @property {number} fence
 * @property {number} ttl_ms
 */

/**
 * Bring back the content of a moment, as one revision that begins an epoch.
 * @typedef {object} RestoreParams
 * @property {string} board
 * @property {number | string | Instant} to
 * @property {string} request
 * @property {string} [note]
 * @property {boolean} [keep_calls]
 * @property {string | null} [agent]
 */

/**
 * The result of a restore: since `revision`, which begins `epoch`, the board has the content of
 * `from_revision`.
 * `put_back` and `removed` count the keys that changed. The abandoned revisions end just before
 * `revision` and stay readable; `before` is a checkpoint of them, at their end or, if others
 * committed until the switch, shortly before.
 * @typedef {object} RestoreResult
 * @property {number} revision
 * @property {number} time_ms
 * @property {Epoch} epoch
 * @property {number} from_revision
 * @property {number} put_back
 * @property {number} removed
 * @property {string} before
 */

/**
 * The part of a revision that you may read. `digest` is the SHA-256 of the whole, in hexadecimal.
 * `epoch` is set on a revision that begins one, `account` if the author's name was narrowed from
 * it.
 * @typedef {object} RevisionMessage
 * @property {number} revision
 * @property {number} time_ms
 * @property {string} author
 * @property {Array<ChangeMessage>} changes
 * @property {string} digest
 * @property {Array<[string, number]>} [based_on]
 * @property {string} [note]
 * @property {Epoch} [epoch]
 * @property {string} [account]
 */

/**
 * End tokens by their ids, and every token issued to `principal` until now.
 * @typedef {object} RevokeParams
 * @property {Array<string>} [tokens]
 * @property {string | null} [principal]
 * @property {number | null} [until_ms]
 * @property {string | null} [agent]
 */

/**
 * Result of `revoke`: the number of tokens and principals that are now revoked.
 * @typedef {object} RevokeResult
 * @property {number} revoked
 */

/**
 * Wrap every data key with the first master key.
 * @typedef {object} RewrapParams
 * @property {string | null} [agent]
 */

/**
 * Result of `erase` and `rewrap`: the number of data keys that were destroyed or rewrapped.
 * @typedef {object} RewrapResult
 * @property {number} keys
 */

/**
 * The rights that a grant can give on the keys that its pattern matches.
 * @typedef {'admin' | 'append' | 'approve' | 'checkpoint' | 'lock' | 'read' | 'restore' | 'write'} Right
 */

/**
 * Take commits again; `known` as in `freeze`: a later freeze is not ended.
 * @typedef {object} ThawParams
 * @property {string} board
 * @property {string} [note]
 * @property {number | null} [known]
 * @property {string | null} [agent]
 */

/**
 * End a watch.
 * @typedef {object} UnwatchParams
 * @property {number} watch
 * @property {string | null} [agent]
 */

/**
 * Check everything that is stored up to a moment.
 * @typedef {object} VerifyParams
 * @property {string} board
 * @property {number | string | Instant} at
 * @property {string | null} [agent]
 */

/**
 * The result of checking a board up to `revision`; nothing is damaged if `findings` is empty.
 * `more` says that there were more findings than listed. `erased` names the namespaces whose data
 * key was destroyed: their values from that time are stored, but can no longer be decrypted.
 * @typedef {object} VerifyResult
 * @property {number} revision
 * @property {Array<string>} findings
 * @property {boolean} more
 * @property {Array<string>} erased
 */

/**
 * One item of the result of `history`; without `entry` the key was removed then.
 * `account` is there if the author's name was narrowed from it.
 * @typedef {object} VersionMessage
 * @property {string} key
 * @property {number} revision
 * @property {number} time_ms
 * @property {string} author
 * @property {string} [account]
 * @property {EntryMessage} [entry]
 */

/**
 * A waiter in the queue of a lease.
 * @typedef {object} WaiterMessage
 * @property {string} holder
 * @property {number} ttl_ms
 * @property {number} until_ms
 */

/**
 * Begin watch number `watch`: changes of keys that match, after a resume token (null = now).
 * @typedef {object} WatchParams
 * @property {string} board
 * @property {number} watch
 * @property {Array<string>} patterns
 * @property {string | null} [after]
 * @property {boolean} [coalesce]
 * @property {string | null} [agent]
 */

/**
 * Result of `watch`: the resume token at which it begins.
 * @typedef {object} WatchResult
 * @property {string} position
 */

/**
 * Who you are to the service.
 * @typedef {object} WhoamiParams
 * @property {string | null} [agent]
 */

/**
 * Result of `whoami`: the principal of the token, and the agent that the connection acts as.
 * `grants` are the principal's; an empty list of boards means all of them.
 * @typedef {object} WhoamiResult
 * @property {string} principal
 * @property {string} agent
 * @property {Array<GrantMessage>} grants
 * @property {Array<string>} boards
 * @property {number} [expires_at_ms]
 */

/**
 * The commits that led to `key`.
 * @typedef {object} WhyParams
 * @property {string} board
 * @property {string} key
 * @property {string | null} [agent]
 */

/**
 * Every method by its name.
 * @typedef {object} Methods
 * @property {{ params: HelloParams, result: HelloResult }} hello
 * @property {{ params: WhoamiParams, result: WhoamiResult }} whoami
 * @property {{ params: RefreshParams, result: RefreshResult }} refresh
 * @property {{ params: WatchParams, result: WatchResult }} watch
 * @property {{ params: UnwatchParams, result: null }} unwatch
 * @property {{ params: ProgressParams, result: null }} progress
 * @property {{ params: CommitParams, result: CommitResult }} commit
 * @property {{ params: HeadParams, result: HeadResult }} head
 * @property {{ params: ReadParams, result: ReadResult }} read
 * @property {{ params: ListParams, result: ListResult }} list
 * @property {{ params: LeasesParams, result: LeasesResult }} leases
 * @property {{ params: LogParams, result: LogResult }} log
 * @property {{ params: ActivityParams, result: ActivityResult }} activity
 * @property {{ params: RefusalsParams, result: Array<RefusedCommit> }} refusals
 * @property {{ params: WhyParams, result: Array<CauseMessage> }} why
 * @property {{ params: BoardsParams, result: Array<string> }} boards
 * @property {{ params: CheckpointParams, result: CheckpointResult }} checkpoint
 * @property {{ params: CheckpointsParams, result: Array<Checkpoint> }} checkpoints
 * @property {{ params: ManifestParams, result: ManifestResult }} manifest
 * @property {{ params: PinParams, result: null }} pin
 * @property {{ params: PruneParams, result: PruneResult }} prune
 * @property {{ params: RestoreParams, result: RestoreResult }} restore
 * @property {{ params: RecoverParams, result: RecoverResult }} recover
 * @property {{ params: RedactParams, result: RedactResult }} redact
 * @property {{ params: FreezeParams, result: FreezeResult }} freeze
 * @property {{ params: ThawParams, result: Freeze | null }} thaw
 * @property {{ params: RemoveParams, result: null }} remove
 * @property {{ params: BranchParams, result: BranchResult }} branch
 * @property {{ params: DifferencesParams, result: DifferencesResult }} differences
 * @property {{ params: HistoryParams, result: Array<VersionMessage> }} history
 * @property {{ params: VerifyParams, result: VerifyResult }} verify
 * @property {{ params: ExportParams, result: ExportResult }} export
 * @property {{ params: ImportBeginParams, result: null }} import_begin
 * @property {{ params: ImportPageParams, result: null }} import_page
 * @property {{ params: ImportEndParams, result: ImportEndResult }} import_end
 * @property {{ params: LostBoardsParams, result: Array<LostBoard> }} lost_boards
 * @property {{ params: AuditParams, result: Array<AuditMessage> }} audit
 * @property {{ params: EraseParams, result: EraseResult }} erase
 * @property {{ params: RewrapParams, result: RewrapResult }} rewrap
 * @property {{ params: RevokeParams, result: RevokeResult }} revoke
 * @property {{ params: IssueParams, result: IssueResult }} issue
 */

/** Every method of the protocol. @type {ReadonlyArray<keyof Methods>} */
export const METHODS = Object.freeze([
  'hello',
  'whoami',
  'refresh',
  'watch',
  'unwatch',
  'progress',
  'commit',
  'head',
  'read',
  'list',
  'leases',
  'log',
  'activity',
  'refusals',
  'why',
  'boards',
  'checkpoint',
  'checkpoints',
  'manifest',
  'pin',
  'prune',
  'restore',
  'recover',
  'redact',
  'freeze',
  'thaw',
  'remove',
  'branch',
  'differences',
  'history',
  'verify',
  'export',
  'import_begin',
  'import_page',
  'import_end',
  'lost_boards',
  'audit',
  'erase',
  'rewrap',
  'revoke',
  'issue',
])
