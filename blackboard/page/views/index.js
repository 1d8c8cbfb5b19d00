// Every view of the page, in the order of the navigation. A new one is a file and a line here.
import Act from './act.js'
import Agents from './agents.js'
import Approvals from './approvals.js'
import Compare from './compare.js'
import Documents from './documents.js'
import Feed from './feed.js'
import Holders from './holders.js'
import Lanes from './lanes.js'
import Service from './service.js'
import Tree from './tree.js'

/**
 * `ofService`: it is the same for every board, and there without one.
 * @typedef {{ name: string, title: string, component: () => unknown, ofService: boolean }} View
 */

/** @type {View[]} */
export const VIEWS = [
  { name: 'lanes', title: 'Lanes', component: Lanes, ofService: false },
  { name: 'feed', title: 'Feed', component: Feed, ofService: false },
  { name: 'tree', title: 'Tree', component: Tree, ofService: false },
  { name: 'compare', title: 'Compare', component: Compare, ofService: false },
  { name: 'documents', title: 'Documents', component: Documents, ofService: false },
  { name: 'agents', title: 'Agents', component: Agents, ofService: false },
  { name: 'approvals', title: 'Approvals', component: Approvals, ofService: false },
  { name: 'locks', title: 'Locks', component: Holders, ofService: false },
  { name: 'service', title: 'Service', component: Service, ofService: true },
  { name: 'act', title: 'Act', component: Act, ofService: false }
]
