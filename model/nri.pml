/*
 * NRI's multiplexer between two peers that call each other over one trunk: the claim of ttrpc-nri's module `mux`. `run` checks
 * it with the rows whose switches begin with SCENE_NRI.
 *
 * One side, the plugin, is modelled whole; the other one, the runtime, by what it sends. On logical connection 1 the runtime
 * calls the plugin; each handler of the plugin calls the runtime on connection 2 and waits for the answer, and the server has
 * LIMIT handlers at a time and stops reading at that limit (without the stall timeout: the clock is not what saves here).
 *
 *   runtime  ==trunk_in==>  trunk reader  ==unread[1]==> server receiver -> handlers
 *                                         ==unread[2]==> client receiver -> handlers that wait
 *   runtime <==trunk_out==  trunk writer  <==unsent[..]==  senders
 *
 * WRONG_NRI_WAITS      the trunk reader waits for room in the queue of one connection
 * WRONG_NRI_ONE_QUEUE  both connections share one queue, which is read in order
 */
#ifndef CALLS
#define CALLS 4
#endif
#ifndef LIMIT
#define LIMIT 1
#endif
#define QUEUE 1

mtype = { request, reply, nested, nested_reply };

chan trunk_in = [1] of { mtype };
chan trunk_out = [1] of { mtype };
/* As many as the peer's protocol allows: one reply for each handler, and its calls. With a bound in bytes the trunk ends where
 * it is exceeded; the runtime here keeps to it, which the assertion below checks. */
chan unread1 = [CALLS] of { mtype };
chan unread2 = [CALLS] of { mtype };
chan shared = [QUEUE] of { mtype };
chan unsent = [1] of { mtype };
chan answers = [CALLS] of { mtype };

byte running;   /* handlers */
byte answered;  /* calls of the runtime that are over */

/* The runtime has all calls under way at once, and answers what it is asked. Its reader and its writer are two tasks. */
chan owed = [CALLS] of { mtype };

active proctype RuntimeCaller() {
  byte sent;
end_idle:
  do
  :: sent < CALLS -> trunk_in!request; sent++
  :: owed?nested -> trunk_in!nested_reply
  od
}

active proctype RuntimeReader() {
end_idle:
  do
  :: trunk_out?nested -> owed!nested
  :: trunk_out?reply -> answered++
  od
}

active proctype TrunkReader() {
  mtype frame;
end_idle:
  do
  :: trunk_in?frame ->
#if defined(WRONG_NRI_ONE_QUEUE)
    shared!frame
#elif defined(WRONG_NRI_WAITS)
    if
    :: frame == request -> (len(unread1) < QUEUE); unread1!frame
    :: else -> (len(unread2) < QUEUE); unread2!frame
    fi
#else
    if
    :: frame == request -> assert(nfull(unread1)); unread1!frame
    :: else -> assert(nfull(unread2)); unread2!frame
    fi
#endif
  od
}

#ifdef WRONG_NRI_ONE_QUEUE
active proctype Distributor() {
  mtype frame;
end_idle:
  do
  :: shared?frame ->
    if
    :: frame == request -> (len(unread1) < QUEUE); unread1!frame
    :: else -> (len(unread2) < QUEUE); unread2!frame
    fi
  od
}
#endif

/* Stops reading while LIMIT handlers run. */
active proctype ServerReceiver() {
end_idle:
  do
  :: unread1?request -> (running < LIMIT); running++; run Handler()
  od
}

proctype Handler() {
  unsent!nested;
  answers?nested_reply;
  unsent!reply;
  running--
}

active proctype ClientReceiver() {
end_idle:
  do
  :: unread2?nested_reply -> answers!nested_reply
  od
}

active proctype TrunkWriter() {
  mtype frame;
end_idle:
  do
  :: unsent?frame -> trunk_out!frame
  od
}

/* All may rest only when every call is over and nothing is left. */
active proctype Janitor() {
  (answered == CALLS && running == 0);
  assert(empty(trunk_in) && empty(trunk_out) && empty(unread1) && empty(unread2))
}
