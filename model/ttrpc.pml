/*
 * One ttrpc connection, with a client at one end and a server at the other: who waits for whom.
 *
 * The claim is that no task of the library waits for ever, in the order that `transport/mod.rs`
 * states:
 *
 *     caller -> client sender -> (socket) -> server receiver -> server sender -> (socket)
 *            -> client receiver -> nobody
 *
 * README.md states the theorem, its assumptions, and which code each part stands for. `run` checks
 * the right design, the wrong designs (WRONG_*) and the mutations (BUG_*), all from this one file:
 * a switch takes a single rule out of the right design and changes nothing else.
 *
 * How to read it:
 *   - A wait is a guard. Tasks take turns between the steps that are in one `atomic`; where such a
 *     step meets a wait that is not over, the others go on.
 *   - `end_` labels stand only where a task has nothing to do. A state in which a task stands
 *     elsewhere and nobody can move is what spin reports as an invalid end state: a deadlock.
 *   - `Janitor` may end only when every call is over and nothing of any call is left. It has no
 *     `end_` label, so a connection that comes to rest with a leak is an invalid end state as well.
 */

/* ------------------------------------------------------------------------------------------------
 * Calls. What a call does is its kind; a scene is a list of kinds, with limits.
 */
#define NOBODY        0  /* No call. */
#define UNARY         1  /* One request, one reply, no deadline. */
#define TIMED         2  /* UNARY with a deadline. */
#define WAIT          3  /* Its handler ends when a RELEASE has been handled. No deadline. */
#define RELEASE       4  /* Lets the handlers of WAIT and ATTACH go on. */
#define WAITED        5  /* WAIT with a deadline, which the server knows, too. */
#define LATER         6  /* UNARY, made when calls 0 and 1 are over and their handlers have ended. */
#define AGAIN         7  /* A caller who makes unary calls one after another, for ever. */
#define WATCH         8  /* Server streaming; the consumer reads all, or stops at any moment. */
#define READ          9  /* Server streaming; the consumer reads all. */
#define ENDLESS      10  /* Server streaming without end; the consumer reads for ever. */
#define TIMED_READ   11  /* READ with a deadline. */
#define NESTING      12  /* Server streaming; the consumer awaits call 1 before it reads. */
#define NESTED       13  /* That call: UNARY, made when call 0 has a message. */
#define STUCK        14  /* Server streaming; the consumer never reads. */
#define ONCE         15  /* Server streaming; the consumer reads one message. */
#define BIDI         16  /* Bidirectional echo; the client sends everything before it reads. */
#define UPLOAD       17  /* Client streaming; the handler reads all and replies. */
#define TIMED_UPLOAD 18  /* UPLOAD with a deadline, which the server knows, too. */
#define ATTACH       19  /* Client streaming; the handler reads nothing before a RELEASE. */

#define STREAMS_UP(kind) (kind >= BIDI)
#define STREAMS_DOWN(kind) (kind >= WATCH && kind <= BIDI)
#define HAS_DEADLINE(kind) \
    (kind == TIMED || kind == WAITED || kind == TIMED_READ || kind == TIMED_UPLOAD)
#define SERVER_KNOWS(kind) (kind == WAITED || kind == TIMED_UPLOAD)
#define MAY_STOP(kind) (kind == WATCH || kind == STUCK || kind == ONCE)

#if defined(SCENE_UNARY)       /* Frames both ways through the smallest buffers. */
#define K0 UNARY
#define K1 UNARY
#define K2 UNARY
#define K3 UNARY
#elif defined(SCENE_DEADLINE)  /* The same, and one of them may be given up in any phase. */
#define K0 UNARY
#define K1 UNARY
#define K2 TIMED
#define LIMIT 2
#elif defined(SCENE_WAITS)     /* As many waits as the server has room for, and their release. */
#define K0 WAIT
#define K1 WAIT
#define K2 RELEASE
#ifndef FEWER
#define K3 UNARY
#endif
#define LIMIT 2
#elif defined(SCENE_PLACES)    /* As many waits as the client has places for, and their release. */
#define K0 WAIT
#define K1 WAIT
#define K2 RELEASE
#define LIMIT 3
#define OPEN_CALLS 2
#elif defined(SCENE_WAITED)    /* The same with deadlines, and nobody to release them. */
#define K0 WAITED
#define K1 WAITED
#define K2 UNARY
#define LIMIT 2
#elif defined(SCENE_STREAM)    /* A stream whose consumer may stop reading. */
#define K0 WATCH
#define K1 UNARY
#define K2 UNARY
#define LIMIT 2
#define MESSAGES 4
#elif defined(SCENE_BIDI)      /* One stream's messages fill both directions. */
#define K0 BIDI
#define K1 UNARY
#define LIMIT 2
#define MESSAGES 6
#elif defined(SCENE_ATTACH)    /* A handler that does not read its stream before another call. */
#define K0 ATTACH
#define K1 RELEASE
#define K2 UNARY
#define LIMIT 2
#elif defined(SCENE_MIX)       /* A little of everything. */
#define K0 WAIT
#define K1 RELEASE
#define K2 WATCH
#define K3 UNARY
#define MESSAGES 2
#elif defined(SCENE_TIMED)     /* Every call has a deadline. */
#define K0 TIMED
#define K1 TIMED_READ
#define LIMIT 2
#define MESSAGES 2
#elif defined(SCENE_UPLOAD)    /* A stream to the server, given up in any phase. */
#define K0 TIMED_UPLOAD
#define K1 UNARY
#define LIMIT 2
#elif defined(SCENE_LOAD)      /* A caller who never stops, and a stream that never ends. */
#define K0 UNARY
#define K1 AGAIN
#define K2 ENDLESS
#define LIMIT 3
#define ENDLESS_CALLS 2
#elif defined(SCENE_BURST)     /* More calls and messages than fit, and everybody moves. */
#define K0 UNARY
#define K1 UNARY
#define K2 UNARY
#define K3 READ
#define MESSAGES 2
#elif defined(SCENE_QUEUED)    /* A handler whose messages are behind a call that waits for it. */
#define K0 UPLOAD
#define K1 UNARY
#elif defined(SCENE_END)       /* For connections that break. */
#define K0 UNARY
#define K1 TIMED
#elif defined(SCENE_END_WATCH)
#define K0 WATCH
#define K1 UNARY
#define LIMIT 2
#define MESSAGES 2
#elif defined(SCENE_END_UPLOAD)
#define K0 UPLOAD
#define MESSAGES 2
#elif defined(SCENE_AFTERMATH) /* The limit was stood at, its holder went, and a burst comes. */
#define K0 WAIT
#define K1 RELEASE
#define K2 LATER
#define K3 LATER
#elif defined(SCENE_NEIGHBOURS) /* Two streams that nobody reads, and one that is read. */
#define K0 STUCK
#define K1 STUCK
#define K2 READ
#define LIMIT 3
#define MESSAGES 2
#define DATED
#elif defined(SCENE_UNREAD)    /* Streams that nobody reads, one after the other. */
#define K0 STUCK
#define K1 STUCK
#define LIMIT 2
#define MESSAGES 2
#define DATED
#elif defined(SCENE_ONCE)      /* Streams that are read once, one after the other. */
#define K0 ONCE
#define K1 ONCE
#define LIMIT 2
#define MESSAGES 3
#define DATED
#elif defined(SCENE_PATIENCE)  /* A stream that nobody reads, and one that is read for longer. */
#define K0 STUCK
#define K1 READ
#define LIMIT 2
#define MESSAGES 3
#define DATED
#elif defined(SCENE_CREDIT)    /* A stream that is read once, and one that is read for longer. */
#define K0 ONCE
#define K1 READ
#define LIMIT 2
#define MESSAGES 4
#define DATED
#elif defined(SCENE_CROWD)     /* A caller who never stops takes the places that another waits for. */
#define K0 UNARY
#define K1 AGAIN
#define LIMIT 2
#define OPEN_CALLS 1
#define ENDLESS_CALLS 1
#elif defined(SCENE_NESTING)   /* A consumer who calls on the connection that its stream is on. */
#define K0 NESTING
#define K1 NESTED
#define LIMIT 2
#elif defined(SCENE_FLOOD)     /* What a hostile client opens. */
#define K0 UNARY
#define K1 WATCH
#define K2 UPLOAD
#define K3 UNARY
#define LIMIT 2
#define MESSAGES 1
#else
#error "choose a scene"
#endif

#ifndef K1
#define K1 NOBODY
#endif
#ifndef K2
#define K2 NOBODY
#endif
#ifndef K3
#define K3 NOBODY
#endif
#define CALLS 4
#define IS_CALL(kind) (kind != NOBODY)
#define CALL_COUNT (IS_CALL(K0) + IS_CALL(K1) + IS_CALL(K2) + IS_CALL(K3))
#ifndef ENDLESS_CALLS
#define ENDLESS_CALLS 0
#endif

#define KIND(call) (call == 0 -> K0 : (call == 1 -> K1 : (call == 2 -> K2 : K3)))

/* Limits, as small as they can be. */
#ifndef LIMIT
#define LIMIT 1         /* Handlers in flight. */
#endif
#ifndef CLIENT_QUEUE
#define CLIENT_QUEUE 1  /* Frames that are queued or being written. */
#endif
#ifndef SERVER_QUEUE
#define SERVER_QUEUE 1  /* The same on the server. */
#endif
#ifndef INBOX
#define INBOX 1         /* Messages of a stream that nobody has taken. */
#endif
#ifndef MESSAGES
#define MESSAGES 3      /* Messages that a stream carries. */
#endif
/* OPEN_CALLS: calls that a client has open at a time. Undefined, there is no limit. */
/* RUNNERS: handlers of a connection in their first step at a time. Undefined, there is no limit. */
#ifndef BUDGET
#define BUDGET 4        /* Waits in vain that a connection has. A stream never read leaves the last. */
#endif

/* ------------------------------------------------------------------------------------------------
 * Steps. FINE splits steps in which a task reads, decides and writes; without it they are one where
 * what others could do in between could as well happen before or after. Both are checked.
 */
#ifdef FINE
#define STEP }; atomic {
#else
#define STEP ;
#endif
/* Between having room and the push others may move. */
#if defined(FINE) || defined(BUG_ID_BEFORE_PUSH)
#define APART }; atomic {
#else
#define APART ;
#endif

/* ------------------------------------------------------------------------------------------------
 * Time.
 *
 * A clock that is armed may go off in any state. That allows more than time does (it goes off early,
 * and in any order with others), so what holds here holds for all durations; and a run in which it
 * does not go off although nothing else can happen is no run, as in reality. "Nothing is lost"
 * cannot hold like that; for it, LATE lets a stall clock go off only when nobody else can move,
 * which says: each step of others takes less than the stall timeout. With NO_CLOCK none ever does.
 */
#ifdef NO_CLOCK
#define CLOCK false
#elif defined(LATE)
#define CLOCK timeout
#else
#define CLOCK true
#endif

/* A deadline may pass in any state, too. With TIMERS it is a task of its own that says when, so that
 * under fairness it does, however much else there is for its caller to do. */
#ifdef TIMERS
bool expired[CALLS];
#define IS_LATE(call, kind) (HAS_DEADLINE(kind) && expired[call])
#else
#define IS_LATE(call, kind) HAS_DEADLINE(kind)
#endif
#if defined(TIMERS) && !defined(BUG_DEADLINE_YIELDS_TO_MESSAGES)
#define MAY_READ(call) (!expired[call] || answer[call] != None)
#else
#define MAY_READ(call) true
#endif

/* SLOW_PEER: the client's receiver takes longer for a frame than all others for anything. */
#ifdef SLOW_PEER
#define RECEIVER_RUNS timeout
#else
#define RECEIVER_RUNS true
#endif

/* What NOTHING_LOST says is not lost: a call is not refused, and a stream is not failed. */
#ifndef NOTHING_LOST
#define NOTE_LOSS(call) skip
#elif defined(SCENE_PATIENCE)
/* A stream that has been read keeps some time when others are not read. */
#define NOTE_LOSS(call) assert(call < 1 || !is_read[call])
#elif defined(SCENE_CREDIT)
/* A stream that has moved while it was waited for keeps its time whatever others do. */
#define NOTE_LOSS(call) assert(call < 1 || !has_credit[call])
#elif defined(SCENE_AFTERMATH) || defined(SCENE_NEIGHBOURS)
#define NOTE_LOSS(call) assert(call < 2)
#else
#define NOTE_LOSS(call) assert(false)
#endif

/* ------------------------------------------------------------------------------------------------
 * The wrong designs, and the mutations that take away a clock or a wait.
 */
#ifdef WRONG_PAUSE_AT_LIMIT
#define LIMIT_CLOCK false
#else
#define LIMIT_CLOCK CLOCK
#endif
#ifdef WRONG_WAIT_FOR_CONSUMER
#define CONSUMER_CLOCK false
#else
#define CONSUMER_CLOCK CLOCK
#endif
#ifdef BUG_WAIT_FOR_HANDLER
#define HANDLER_CLOCK false
#else
#define HANDLER_CLOCK CLOCK
#endif
#ifdef BUG_WAIT_FOR_PLACE
#define PLACE_CLOCK false
#else
#define PLACE_CLOCK CLOCK
#endif
#ifdef BUG_DEADLINE_SKIPS_QUEUE
#define QUEUE_DEADLINE false
#else
#define QUEUE_DEADLINE true
#endif
#ifdef BUG_PUSH_AFTER_END
#define PUSH_IS_REFUSED false
#else
#define PUSH_IS_REFUSED client_queue_closed
#endif
#ifdef BUG_END_NEEDS_ROOM
#define END_HAS_ROOM(call) (client_inbox[call] < INBOX)
#else
#define END_HAS_ROOM(call) true
#endif

/* In a task that both sends and receives, whoever has begun something keeps the other from
 * beginning anything: `*_busy` is that task. */
#ifdef WRONG_CLIENT_ONE_TASK
bool client_busy;
#define CLIENT_IS_FREE (!client_busy)
#define CLIENT_BEGINS client_busy = true
#define CLIENT_IS_DONE client_busy = false
#else
#define CLIENT_IS_FREE true
#define CLIENT_BEGINS skip
#define CLIENT_IS_DONE skip
#endif
#ifdef BUG_SERVER_ONE_TASK
bool server_busy;
#define SERVER_IS_FREE (!server_busy)
#define SERVER_BEGINS server_busy = true
#define SERVER_IS_DONE server_busy = false
#else
#define SERVER_IS_FREE true
#define SERVER_BEGINS skip
#define SERVER_IS_DONE skip
#endif

/* The lock of the client's table and queue. In the right design it is held within one step. */
#ifdef WRONG_LOCK_OVER_WRITE
bool table_locked;
#define TABLE_IS_FREE (!table_locked)
#define LOCK_TABLE table_locked = true
#define UNLOCK_TABLE table_locked = false
#else
#define TABLE_IS_FREE true
#define LOCK_TABLE skip
#define UNLOCK_TABLE skip
#endif

/* Waiting for room in turn, as the queue's semaphores do. Who waits in which order matters only
 * where callers never stop; elsewhere every order is tried. */
#if defined(IN_TURN) && !defined(BUG_OUT_OF_TURN)
chan client_line = [CALLS] of { byte };
chan server_line = [CALLS + 1] of { byte };
#define JOIN(line, who) line!who
#define HAS_TURN(line, who) line?[eval(who)]
#define LEAVE(line, who) line??eval(who)
#else
#define JOIN(line, who) skip
#define HAS_TURN(line, who) true
#define LEAVE(line, who) skip
#endif
#if defined(IN_TURN) && defined(OPEN_CALLS)
chan place_line = [CALLS] of { byte };
#define JOIN_PLACES(who) place_line!who
#define LEAVE_PLACES(who) place_line??eval(who)
#ifdef BUG_NEWCOMERS_OVERTAKE
#define HAS_PLACE(who) (open_calls < OPEN_CALLS)
#else
#define HAS_PLACE(who) (open_calls < OPEN_CALLS && place_line?[eval(who)])
#endif
#else
#define JOIN_PLACES(who) skip
#define LEAVE_PLACES(who) skip
#define HAS_PLACE(who) (open_calls < OPEN_CALLS)
#endif
#define RECEIVER CALLS /* The server's receiver, standing in line with the handlers. */

/* ------------------------------------------------------------------------------------------------
 * Sockets. A socket holds less than a frame: the writer of one is busy until the reader has come for
 * it. With HALVES a frame is written and read in two steps, and both ends may be in the middle of
 * one, so that a frame which is cut short is noticed; elsewhere the reader takes it in one step,
 * since a reader in the middle of a frame waits for nobody but the writer.
 */
mtype = { Request, Data, End, Response, Refusal };

#ifdef CUT
bool cut; /* The connection is broken: reads and writes fail. */
#define IS_CUT cut
#else
#define IS_CUT false
#endif

#ifdef PEER_STOPS
bool peer_stopped; /* The server neither reads nor writes any more. */
#define PEER_GOES_ON (!peer_stopped)
#else
#define PEER_GOES_ON true
#endif

#ifdef HALVES
chan to_server = [1] of { mtype, byte, bit };
chan to_client = [1] of { mtype, byte, bit };
#define FIRST_HALF(type, call) type, call, 0
#define SECOND_HALF(socket, type, call) socket!type, call, 1
#define READER_VARIABLES mtype rest_type; byte rest_call; bit half;
#define TAKE(socket) socket?type, call, half; assert(half == 0)
#define TAKE_REST(socket)                                                   \
    if                                                                      \
    :: socket?rest_type, rest_call, half ->                                 \
       assert(half == 1 && rest_type == type && rest_call == call);         \
       rest_type = 0; rest_call = 0; half = 0                               \
    :: IS_CUT -> break                                                      \
    fi
#else
chan to_server = [1] of { mtype, byte };
chan to_client = [1] of { mtype, byte };
#define FIRST_HALF(type, call) type, call
#define SECOND_HALF(socket, type, call) empty(socket)
#define READER_VARIABLES
#define TAKE(socket) socket?type, call
#define TAKE_REST(socket) skip
#endif

/* ------------------------------------------------------------------------------------------------
 * The client's state.
 */
mtype = { None, Replied, Refused, Stalled, Unavailable };

chan client_queue = [CLIENT_QUEUE + CALLS] of { mtype, byte };
byte client_room_taken;       /* Frames queued or being written; a closing frame takes no room. */
bool client_queue_closed;
bool in_table[CALLS];         /* The stream has an entry in the client's table. */
mtype answer[CALLS] = None;   /* How the call was answered. */
bool given_up[CALLS];         /* The caller does not want the call any more. */
byte client_inbox[CALLS];     /* Messages that the consumer has not taken. */
byte over_count;              /* Calls that are over. */
bool over[CALLS];
#ifdef OPEN_CALLS
byte open_calls;              /* Calls that hold a place. */
#endif

/* Where the Request is. The sender takes the whole queue as a batch; what of it belongs to calls that
 * were given up by then is dropped, and once more whenever a full socket has room again. */
mtype = { Unmade, Queued, InBatch, Begun, Dropped };
mtype request[CALLS] = Unmade;
byte batch;                   /* Frames at the head of the queue that are in the sender's batch. */
bool socket_is_full;          /* The sender found it so, and has not found room since. */
bool must_drop[CALLS];        /* Given up before the sender last looked; for the assertion alone. */

/* Consumers that stand still together are waited for once. A move is dated by the number of waits
 * that had begun: whoever has stood still for a whole wait in vain is refused without one. Only in
 * scenes where streams are failed side by side; elsewhere each full inbox is waited for. */
#ifdef DATED
byte waits;
byte in_vain;
byte moved_at[CALLS];
bool is_read[CALLS];          /* The consumer has taken a message. */
bool has_credit[CALLS];       /* It has while it was waited for. */
byte vain_waits;
#ifdef BUG_READ_LIKE_UNREAD
#define SHARE(call) (BUDGET - 1)
#else
#define SHARE(call) (is_read[call] -> BUDGET : BUDGET - 1)
#endif
#ifdef BUG_WAITS_FOR_EACH_UNREAD
#define IS_EXHAUSTED(call) false
#elif defined(BUG_READ_ONCE_IS_READ)
#define IS_EXHAUSTED(call) (!is_read[call] && vain_waits >= SHARE(call))
#elif defined(BUG_NO_CREDIT)
#define IS_EXHAUSTED(call) (vain_waits >= SHARE(call))
#else
#define IS_EXHAUSTED(call) (!has_credit[call] && vain_waits >= SHARE(call))
#endif
#define NOTE_MOVE(call) moved_at[call] = waits
#define NOTE_READ(call) is_read[call] = true
#define HAS_READ(call) is_read[call]
/* The move may go unnoticed for as long as it took. */
#define NOTE_CREDIT(call)                                                   \
    if                                                                      \
    :: HAS_READ(call) -> has_credit[call] = true                            \
    :: true                                                                 \
    fi
#define NOTE_IN_VAIN(call, number)                                          \
    if                                                                      \
    :: !IS_EXHAUSTED(call) ->                                               \
       in_vain = number;                                                    \
       vain_waits++;                                                        \
       assert(has_credit[call] || vain_waits <= SHARE(call))                \
    :: else                                                                 \
    fi
#ifdef BUG_ONE_STREAM_SPEAKS_FOR_ALL
#define STOOD_STILL(call) (in_vain > 0)
#else
#define STOOD_STILL(call) (moved_at[call] < in_vain)
#endif
#else
#define IS_EXHAUSTED(call) false
#define NOTE_MOVE(call) skip
#define NOTE_READ(call) skip
#define HAS_READ(call) false
#define NOTE_CREDIT(call) skip
#define NOTE_IN_VAIN(call, number) skip
#endif

#define CLIENT_HAS_ROOM(who) (HAS_TURN(client_line, who) && client_room_taken < CLIENT_QUEUE)

/* Stream ids, in scenes that look at them. */
#ifdef IDS
byte next_id;
byte id[CALLS];
byte last_id;
#define GIVE_ID(call) next_id++; id[call] = next_id
#define CHECK_ID(call) assert(id[call] > last_id); last_id = id[call]
#else
#define GIVE_ID(call) skip
#define CHECK_ID(call) skip
#endif
#if defined(BUG_ID_BEFORE_QUEUE)   /* A call has its id when it begins to wait for room, */
#define GIVE_EARLY_ID(call) GIVE_ID(call)
#define GIVE_ID_WITH_ROOM(call) skip
#define GIVE_ID_WITH_PUSH(call) skip
#elif defined(BUG_ID_BEFORE_PUSH)  /* or when it has room, one step before the push, */
#define GIVE_EARLY_ID(call) skip
#define GIVE_ID_WITH_ROOM(call) GIVE_ID(call)
#define GIVE_ID_WITH_PUSH(call) skip
#else                              /* or as its Request enters the queue, in the same step. */
#define GIVE_EARLY_ID(call) skip
#define GIVE_ID_WITH_ROOM(call) skip
#define GIVE_ID_WITH_PUSH(call) GIVE_ID(call)
#endif

/* Callers of the same kind are alike, so it is enough to let them queue their Requests in one order.
 * With IN_TURN and with IDS the order is the point, and with OPEN_CALLS they would wait for each
 * other. */
#if defined(IN_TURN) || defined(IDS) || defined(OPEN_CALLS)
#define MAY_BEGIN(call) true
#define BEGIN(call) skip
#else
bool has_begun[CALLS];
#define IS_ALIKE(call) ((call == 1 && K0 == K1) || (call == 2 && K1 == K2) || (call == 3 && K2 == K3))
#define MAY_BEGIN(call) (!IS_ALIKE(call) || has_begun[call - 1])
#define BEGIN(call) has_begun[call] = true
#endif

/* Messages are sent as long as the call goes on. When its sender is dropped the stream is closed, if
 * the server may still wait for that: a stream that stood still on this side has no entry any more, and
 * its handler would wait for ever. */
#ifdef BUG_STALLED_STREAM_IS_NOT_CLOSED
#define IS_TO_BE_CLOSED(call) in_table[call]
#else
#define IS_TO_BE_CLOSED(call) (in_table[call] || answer[call] == Stalled)
#endif

/* The frames of a call that was given up are dropped, all or, if its Request has begun, none. */
#ifdef BUG_MESSAGE_OUTLIVES_REQUEST
#define IS_DROPPED(type, call) (request[call] == Dropped && type == Request)
#else
#define IS_DROPPED(type, call) (request[call] == Dropped)
#endif

/* The sender looks for calls that were given up, as it takes a batch or finds room. */
inline look(takes_batch, drops) {
    d_step {
        other = 0;
        do
        :: other < CALLS ->
           if
           :: drops && given_up[other] &&
              (request[other] == Queued || request[other] == InBatch) ->
              request[other] = Dropped
           :: takes_batch && request[other] == Queued && !(drops && given_up[other]) ->
              request[other] = InBatch
           :: else
           fi;
           other++
        :: else -> break
        od;
        other = 0
    }
}
#ifdef BUG_TAKES_GIVEN_UP
#define TAKING_DROPS false
#else
#define TAKING_DROPS true
#endif
#ifdef BUG_WRITES_GIVEN_UP
#define ROOM_DROPS false
#else
#define ROOM_DROPS true
#endif

/* The call is answered. Never waits. */
inline answer_call(call, how) {
    assert(answer[call] == None);
    assert(!given_up[call]);
    answer[call] = how
}

/* The caller gives up, in whatever phase the call is. */
inline give_up(call) {
    given_up[call] = true;
    client_inbox[call] = 0;
    must_drop[call] = request[call] == Queued || (request[call] == InBatch && socket_is_full);
#ifndef BUG_ENTRY_OUTLIVES_CALL
    in_table[call] = false
#endif
}

/* ------------------------------------------------------------------------------------------------
 * The server's state.
 */
mtype = { Idle, Ready, Running };

chan server_queue = [SERVER_QUEUE + CALLS + 1] of { mtype, byte };
byte server_room_taken;
bool server_closed;
mtype handler[CALLS] = Idle;
chan ready_queue = [CALLS] of { byte }; /* Calls that have been let in and not begun. */
byte in_flight;               /* Handlers that have not ended. */
bool refusing;                /* The limit was stood at for the stall timeout, and nothing moved. */
bool stream_open[CALLS];      /* The stream has an entry in the server's table. */
byte server_inbox[CALLS];
bool sent_all[CALLS];         /* The client has closed its side. */
bool released;                /* What WAIT and ATTACH wait for. */
bool requested[CALLS];        /* A Request has arrived; for the assertions alone, as */
bool last_sent[CALLS];        /* the last frame has been queued. */
#ifdef RUNNERS
byte runners;                 /* Handlers in their first step; for scenes of unary calls. */
byte replies_waiting;         /* Replies that are made and wait for room: memory. */
#define MAY_RUN (runners < RUNNERS)
#define RUNS runners++
#define REPLIES(call)                                                       \
    runners--;                                                              \
    if                                                                      \
    :: !SERVER_HAS_ROOM(call) ->                                            \
       waits_to_reply = true;                                               \
       replies_waiting++;                                                   \
       assert(replies_waiting <= 2 * RUNNERS)                               \
    :: else                                                                 \
    fi
#define HAS_REPLIED                                                         \
    if                                                                      \
    :: waits_to_reply -> waits_to_reply = false; replies_waiting--          \
    :: else                                                                 \
    fi
#else
#define MAY_RUN true
#define RUNS skip
#define REPLIES(call) skip
#define HAS_REPLIED skip
#endif

#define SERVER_HAS_ROOM(who) (HAS_TURN(server_line, who) && server_room_taken < SERVER_QUEUE)
#define QUEUE_IS_FULL (server_room_taken >= SERVER_QUEUE)

/* A call that has had its turn begins, though others wait behind it. */
#if defined(BUG_BEGINS_WHILE_FULL)
#define MAY_BEGIN_WITH(call) true
#elif defined(BUG_BEGINS_WHEN_NOBODY_WAITS)
#define MAY_BEGIN_WITH(call) (SERVER_HAS_ROOM(call) && len(server_line) == 1)
#else
#define MAY_BEGIN_WITH(call) SERVER_HAS_ROOM(call)
#endif

/* While the peer does not read, handlers are not to blame for standing still. */
#ifdef BUG_CLOCK_RUNS_WHILE_FULL
#define CLOCK_IS_PAUSED false
#else
#define CLOCK_IS_PAUSED QUEUE_IS_FULL
#endif

inline queue_on_server(type, call) {
    server_room_taken++;
    assert(server_room_taken <= SERVER_QUEUE);
    /* Nothing follows the last frame of a call, and there is one. */
    assert(!last_sent[call]);
    last_sent[call] = (type != Data);
    server_queue!type, call
}

/* ------------------------------------------------------------------------------------------------
 * The client.
 */

/* Waits for room and pushes a frame. A push is one step: a Request takes its id and its entry as it
 * enters the queue, a message enters if the call has its entry, and nothing does once the queue is
 * closed. Goes to `returned` if the deadline passed or the connection ended. */
inline queue_on_client(type, call, kind) {
    JOIN(client_line, call);
    if
    :: atomic {
           CLIENT_HAS_ROOM(call) && !client_queue_closed && MAY_BEGIN(call) ->
           BEGIN(call);
           LEAVE(client_line, call);
           client_room_taken++;
           assert(client_room_taken <= CLIENT_QUEUE);
           GIVE_ID_WITH_ROOM(call)
           APART
           TABLE_IS_FREE;
           if
           :: PUSH_IS_REFUSED ->
              client_room_taken--;
              if
              :: answer[call] == None -> give_up(call)
              :: else
              fi;
              goto returned
           :: !PUSH_IS_REFUSED && type == Request ->
              GIVE_ID_WITH_PUSH(call);
              in_table[call] = true;
              request[call] = Queued;
              client_queue!type, call
           :: !PUSH_IS_REFUSED && type != Request && in_table[call] -> client_queue!type, call
           :: !PUSH_IS_REFUSED && type != Request && !in_table[call] -> client_room_taken--
           fi
       }
    :: atomic {
           IS_LATE(call, kind) && QUEUE_DEADLINE && TABLE_IS_FREE && MAY_BEGIN(call) &&
           answer[call] == None ->
           BEGIN(call);
           LEAVE(client_line, call);
           give_up(call);
           goto returned
       }
    :: atomic {
           client_queue_closed && MAY_BEGIN(call) ->
           BEGIN(call);
           LEAVE(client_line, call);
           if
           :: answer[call] == None -> give_up(call)
           :: else
           fi;
           goto returned
       }
    :: atomic {
           type == Data && answer[call] != None ->
           LEAVE(client_line, call)
       }
    fi
}

/* A caller, and the consumer of its stream. */
proctype Caller(byte me; byte kind) {
    byte sent;

    /* Callers start in any order, but where the order is the point. */
    (kind != LATER || (over[0] && over[1] && in_flight == 0)) &&
    (kind != NESTED || client_inbox[0] > 0 || answer[0] != None);

again:
#ifdef OPEN_CALLS
    /* A place among the calls that the client has open at a time. They may wait for each other, so
     * the call is refused when none of them ends; while the client's own queue is full, that is
     * not their fault. */
    JOIN_PLACES(me);
    if
    :: atomic { HAS_PLACE(me) -> LEAVE_PLACES(me); open_calls++ }
    :: atomic {
           open_calls >= OPEN_CALLS && PLACE_CLOCK && client_room_taken < CLIENT_QUEUE ->
           LEAVE_PLACES(me);
           NOTE_LOSS(me);
           given_up[me] = true;
           goto done
       }
    :: atomic { IS_LATE(me, kind) -> LEAVE_PLACES(me); given_up[me] = true; goto done }
    :: atomic { client_queue_closed -> LEAVE_PLACES(me); given_up[me] = true; goto done }
    fi;
#endif
    atomic { GIVE_EARLY_ID(me) };
    queue_on_client(Request, me, kind);

    if
    :: STREAMS_UP(kind) ->
       do
       :: sent < MESSAGES && answer[me] == None ->
          queue_on_client(Data, me, kind);
          sent++
       :: atomic {
              (sent == MESSAGES || answer[me] != None) && TABLE_IS_FREE ->
              sent = 0;
              /* The few bytes that close a stream need no room; there is at most one per call. */
              if
              :: !client_queue_closed && IS_TO_BE_CLOSED(me) -> client_queue!End, me
              :: else
              fi;
              break
          }
       od
    :: else
    fi;

    do
    :: atomic {
           STREAMS_DOWN(kind) && client_inbox[me] > 0 && kind != STUCK &&
           !(kind == ONCE && HAS_READ(me)) && MAY_READ(me) &&
           (kind != NESTING || over[1]) ->
           client_inbox[me]--;
           NOTE_READ(me);
           NOTE_MOVE(me)
       }
    :: atomic { client_inbox[me] == 0 && answer[me] != None -> goto returned }
    /* The consumer stops reading and keeps its end of the stream. The call must end even so. */
    :: MAY_STOP(kind) && client_inbox[me] > 0 ->
       atomic { answer[me] != None -> client_inbox[me] = 0; goto returned }
    :: atomic {
           IS_LATE(me, kind) && answer[me] == None && TABLE_IS_FREE ->
           give_up(me);
           goto returned
       }
    od;

returned:
    atomic {
        sent = 0;
#ifdef OPEN_CALLS
        open_calls--;
#endif
        if
        :: kind == AGAIN ->
           /* The entry is gone, so the answer belongs to nobody any more. */
           assert(!in_table[me]);
           answer[me] = None;
           request[me] = Unmade;
           goto again
        :: else -> goto done
        fi
    };

done:
    atomic {
#ifndef NOBODY_REACTS
        /* Assumption: who is told that a release was refused sees to it in another way, for
         * instance over another connection. */
        if
        :: kind == RELEASE && answer[me] != Replied -> released = true
        :: else
        fi;
#endif
        assert(!over[me]);
        over[me] = true;
        over_count++
    }
}

/* The client's sender: waits for its queue and for the socket. */
proctype ClientSender() {
    mtype type;
    byte call;
    byte other;

end_idle:
    do
    :: atomic {
           nempty(client_queue) && CLIENT_IS_FREE && TABLE_IS_FREE ->
           CLIENT_BEGINS;
           LOCK_TABLE;
           if
           :: batch == 0 -> look(true, TAKING_DROPS); batch = len(client_queue)
           :: else
           fi;
           client_queue?type, call;
           batch--;
           if
           :: IS_DROPPED(type, call) -> goto drop
           :: else
           fi
           STEP
           if
           :: nfull(to_server)
           :: full(to_server) ->
              socket_is_full = true;
              if
              :: nfull(to_server)
              :: IS_CUT -> socket_is_full = false; break
              fi;
              look(false, ROOM_DROPS);
              if
              :: IS_DROPPED(type, call) -> goto drop
              :: else
              fi
           :: IS_CUT -> break
           fi;
           if
           :: type == Request -> assert(!must_drop[call]); request[call] = Begun
           :: else
           fi;
           to_server!FIRST_HALF(type, call);
           socket_is_full = true
       };
       if
       /* What is half written is finished, whatever the caller does. */
       :: atomic {
              SECOND_HALF(to_server, type, call) ->
              look(false, ROOM_DROPS);
              socket_is_full = false;
              goto drop
          }
#ifdef BUG_HALF_FRAME
       :: atomic { given_up[call] -> goto drop }
#endif
       :: IS_CUT -> break
       fi;
drop:
       atomic {
           socket_is_full = false;
           UNLOCK_TABLE;
           CLIENT_IS_DONE;
           if
           :: type != End -> client_room_taken--
           :: else
           fi;
           type = 0;
           call = 0
       }
    :: client_queue_closed -> break
    od
}

/* The stream has stood still: it ends, its inbox is freed, and what comes for it is dropped. */
inline fail_stalled(call) {
    NOTE_LOSS(call);
#ifndef BUG_STALLED_STREAM_STAYS
    in_table[call] = false;
#endif
    client_inbox[call] = 0;
    answer_call(call, Stalled)
}

inline end_queue() {
    atomic {
        client_queue_closed = true;
        do
        :: client_queue?type, call ->
           if
           :: type != End -> client_room_taken--
           :: else
           fi
        :: empty(client_queue) -> break
        od;
        batch = 0
    }
}

#ifdef BUG_END_FORGETS_QUEUE
#define IS_KNOWN_TO_END(call) (in_table[call] && request[call] == Begun)
#else
#define IS_KNOWN_TO_END(call) in_table[call]
#endif

inline end_calls() {
    atomic {
        call = 0;
        do
        :: call < CALLS ->
           if
           :: IS_KNOWN_TO_END(call) ->
              in_table[call] = false;
#ifndef BUG_END_FORGETS_TABLE
              answer_call(call, Unavailable)
#endif
           :: else
           fi;
           call++
        :: else -> break
        od
    }
}

/* The client's receiver: waits for the socket and, as long as it moves, for the consumer of a full
 * stream. */
proctype ClientReceiver() {
    mtype type;
    byte call;
#ifdef DATED
    byte wait;
#endif
    READER_VARIABLES

end_idle:
    do
    :: atomic {
           nempty(to_client) && CLIENT_IS_FREE && RECEIVER_RUNS ->
           CLIENT_BEGINS;
           TAKE(to_client)
           STEP
           TAKE_REST(to_client)
           STEP
           TABLE_IS_FREE;
           if
           :: !in_table[call] -> type = 0
           :: in_table[call] && (type == Response || type == Refusal) ->
#ifndef BUG_ENTRY_OUTLIVES_REPLY
              in_table[call] = false;
#endif
              answer_call(call, (type == Response -> Replied : Refused));
              type = 0
           :: in_table[call] && type == End && END_HAS_ROOM(call) ->
              in_table[call] = false;
              answer_call(call, Replied);
              type = 0
           :: in_table[call] && type == Data && !STREAMS_DOWN(KIND(call)) ->
              /* The server breaks the protocol. */
              in_table[call] = false;
              answer_call(call, Refused);
              type = 0
           :: in_table[call] && type == Data && STREAMS_DOWN(KIND(call)) &&
              client_inbox[call] < INBOX ->
              if
              :: client_inbox[call] == 0 -> NOTE_MOVE(call)
              :: else
              fi;
              client_inbox[call]++;
              assert(client_inbox[call] <= INBOX);
              type = 0
           :: in_table[call] && type == Data && STREAMS_DOWN(KIND(call)) &&
              client_inbox[call] >= INBOX
           fi
       };
       /* The inbox is full if the frame is still there. */
       if
       :: type != 0 ->
#ifdef DATED
          if
          :: atomic { STOOD_STILL(call) && in_table[call] -> fail_stalled(call); goto received }
          :: atomic { !(STOOD_STILL(call) && in_table[call]) -> waits++; wait = waits }
          fi;
#endif
          if
          :: atomic { TABLE_IS_FREE && !in_table[call] }
          :: atomic {
                 TABLE_IS_FREE && in_table[call] && client_inbox[call] < INBOX ->
                 NOTE_CREDIT(call);
                 if
                 :: client_inbox[call] == 0 -> NOTE_MOVE(call)
                 :: else
                 fi;
                 client_inbox[call]++
             }
          :: atomic {
                 TABLE_IS_FREE && in_table[call] && client_inbox[call] >= INBOX &&
                 (CONSUMER_CLOCK || IS_EXHAUSTED(call)) ->
                 NOTE_IN_VAIN(call, wait);
                 fail_stalled(call)
             }
#if defined(CUT) && !defined(BUG_HELD_UP_MISSES_END)
          /* The server has gone. There is no more to come than the socket holds, which may go over
           * the limit, so that the end is seen at once. */
          :: IS_CUT
#endif
          ;
#ifdef BUG_RECEIVER_QUEUES
             /* The receiver tells the server so, and waits for room. */
             atomic {
                 CLIENT_HAS_ROOM(call) ->
                 client_room_taken++;
                 client_queue!Data, call
             }
#endif
          fi
       :: else
       fi;
received:
       atomic {
           CLIENT_IS_DONE;
#ifdef DATED
           wait = 0;
#endif
           type = 0;
           call = 0
       }
    :: IS_CUT -> break
    od;

#ifdef CUT
    /* The end of the connection: nothing is pushed any more, and then every call that is pending is
     * answered. */
#ifdef BUG_END_TAKES_TABLE_FIRST
    end_calls();
    end_queue()
#else
    end_queue();
    end_calls()
#endif
#endif
}

/* ------------------------------------------------------------------------------------------------
 * The server.
 */

/* A handler that sends: waits for room, and sends nothing on a stream that was ended for it. */
inline send(type, call) {
    JOIN(server_line, call);
    if
    :: atomic {
           SERVER_HAS_ROOM(call) ->
           LEAVE(server_line, call);
           if
           :: stream_open[call] -> queue_on_server(type, call)
           :: else
           fi
       }
    :: atomic { server_closed -> LEAVE(server_line, call); goto ended }
    fi
}

/* Its last frame, which takes the entry out of the table as it enters the queue. As long as it waits
 * for room the call is open; at the deadline it gives way to a status. What the handler held is given
 * back after that. */
inline send_last(type, call, kind) {
    atomic { JOIN(server_line, call); REPLIES(call) };
    if
    :: atomic {
           SERVER_HAS_ROOM(call) ->
           HAS_REPLIED;
           LEAVE(server_line, call);
#ifdef BUG_REPLY_LOOKS_BEFORE_PUSH
           server_room_taken++;
           open = stream_open[call]
       };
       atomic {
           server_room_taken--;
           if
           :: open -> queue_on_server(type, call)
           :: else
           fi;
#else
           if
           :: stream_open[call] -> stream_open[call] = false; queue_on_server(type, call)
           :: else
           fi;
#endif
           goto ended
       }
    :: atomic { SERVER_KNOWS(kind) && !SERVER_HAS_ROOM(call) -> LEAVE(server_line, call); goto late }
    :: atomic { server_closed -> HAS_REPLIED; LEAVE(server_line, call); goto ended }
    fi
}

/* The task of one call. It is there from the start and waits for its Request, which is the same as
 * a task that is spawned then. */
proctype Handler(byte me; byte kind) {
    byte sent;
#ifdef BUG_REPLY_LOOKS_BEFORE_PUSH
    bool open;
#endif
#ifdef RUNNERS
    bool waits_to_reply;
#endif

end_idle:
    do
    :: atomic {
           handler[me] == Ready && ready_queue?[eval(me)] ->
           JOIN(server_line, me)
           STEP
           /* Nothing begins while the queue is full, since its reply would wait as well. */
           if
           :: MAY_BEGIN_WITH(me) && MAY_RUN -> LEAVE(server_line, me); ready_queue?eval(me)
#ifdef BUG_BEGINS_WHEN_NOBODY_WAITS
           :: SERVER_HAS_ROOM(me) && len(server_line) > 1 -> LEAVE(server_line, me); goto end_idle
#endif
           :: server_closed -> LEAVE(server_line, me); ready_queue?eval(me); goto ended
           fi;
           RUNS;
           if
           :: !stream_open[me] -> goto ended /* It was over before it began. */
           :: else
           fi;
           handler[me] = Running
           STEP
           /* What the application waits for before it does anything. */
           if
           :: (kind != WAIT && kind != WAITED && kind != ATTACH) || released
           :: kind == WAITED -> goto late /* The deadline passes on the server. */
           :: kind == ATTACH && !stream_open[me] -> goto ended /* It is cancelled. */
           :: server_closed -> goto ended
           fi;
           if
           :: kind == RELEASE -> released = true
           :: else
           fi
       };
       if
       :: STREAMS_DOWN(kind) && !STREAMS_UP(kind) ->
          do
          :: sent < MESSAGES || kind == ENDLESS ->
             send(Data, me);
             if
             :: kind != ENDLESS -> sent++
             :: else
             fi
          :: sent == MESSAGES && kind != ENDLESS -> break
          od;
          send_last(End, me, kind)
       :: STREAMS_UP(kind) ->
          do
          :: atomic { server_inbox[me] > 0 -> server_inbox[me]-- };
             if
             :: kind == BIDI -> send(Data, me)
             :: else
             fi
          :: server_inbox[me] == 0 && (sent_all[me] || !stream_open[me]) -> break
          :: SERVER_KNOWS(kind) -> goto late /* The deadline passes on the server. */
          :: atomic { server_closed -> goto ended }
          od;
          send_last((kind == BIDI -> End : Response), me, kind)
       :: else -> send_last(Response, me, kind)
       fi;
late:
       /* The deadline ends the call if nobody has, and says so when there is room. */
       atomic {
           if
           :: stream_open[me] -> stream_open[me] = false; JOIN(server_line, me)
           :: else -> goto ended
           fi
       };
       if
       :: atomic {
              SERVER_HAS_ROOM(me) ->
              LEAVE(server_line, me);
              queue_on_server(Refusal, me)
          }
       :: atomic { server_closed -> LEAVE(server_line, me) }
       fi;
ended:
       atomic {
           stream_open[me] = false;
           sent_all[me] = false;
           server_inbox[me] = 0;
           handler[me] = Idle;
           sent = 0;
#ifdef BUG_SLOT_LEAKS
           /* The place of a call whose caller has given up is forgotten. */
           if
           :: given_up[me]
           :: else -> in_flight--
           fi;
#else
           in_flight--;
#endif
#ifndef BUG_REFUSES_FOR_EVER
           refusing = false
#endif
       }
    od
}

/* Queues what the receiver itself has to say. It waits for room, which the sender alone makes. */
inline refuse(call) {
    NOTE_LOSS(call);
#ifdef BUG_REFUSAL_WITHOUT_ROOM
    atomic { queue_on_server(Refusal, call) }
#else
    JOIN(server_line, RECEIVER);
    if
    :: atomic {
           SERVER_HAS_ROOM(RECEIVER) ->
           LEAVE(server_line, RECEIVER);
           queue_on_server(Refusal, call)
       }
#ifdef BUG_REFUSAL_DROPPED
    :: atomic { QUEUE_IS_FULL -> LEAVE(server_line, RECEIVER) }
#endif
    :: atomic { server_closed -> LEAVE(server_line, RECEIVER); break }
    fi
#endif
}

inline admit(call) {
    in_flight++;
    assert(in_flight <= LIMIT);
    stream_open[call] = true;
    handler[call] = Ready;
    ready_queue!call
}

/* A receiver that is held up by the application sees that the peer has gone. */
#ifdef BUG_HELD_UP_MISSES_END
#define SEES_END false
#else
#define SEES_END IS_CUT
#endif

/* The server's receiver: waits for the socket, for room in the queue, and for handlers as long as
 * they move. */
proctype ServerReceiver() {
    mtype type;
    byte call;
    READER_VARIABLES

end_idle:
    do
    :: atomic {
           nempty(to_server) && SERVER_IS_FREE && PEER_GOES_ON ->
           SERVER_BEGINS;
           TAKE(to_server)
           STEP
           TAKE_REST(to_server)
           STEP
#ifndef BUG_READS_WHILE_FULL
           /* A peer that does not read is not read. */
           JOIN(server_line, RECEIVER);
           if
           :: SERVER_HAS_ROOM(RECEIVER) -> LEAVE(server_line, RECEIVER)
           :: server_closed -> LEAVE(server_line, RECEIVER); break
           fi
           STEP
#endif
           /* Whatever is said of a call follows its Request. */
           if
           :: type == Request -> CHECK_ID(call); requested[call] = true; last_sent[call] = false
           :: else -> assert(requested[call])
           fi;
           if
           :: type == Request && in_flight < LIMIT && handler[call] == Idle ->
              admit(call);
              type = 0
           :: type == Data && !stream_open[call] -> type = 0
           :: type == Data && stream_open[call] && server_inbox[call] < INBOX ->
              server_inbox[call]++;
              type = 0
           :: type == End ->
              if
              :: stream_open[call] -> sent_all[call] = true
              :: else
              fi;
              type = 0
           :: else
           fi
       };
       /* A limit that handlers hold up is reached if the frame is still there. */
       if
       :: type == Request ->
          if
          :: atomic { in_flight < LIMIT && handler[call] == Idle -> admit(call) }
          :: in_flight >= LIMIT && LIMIT_CLOCK && !CLOCK_IS_PAUSED ->
             refusing = true;
             refuse(call)
          :: in_flight >= LIMIT && refusing -> refuse(call)
#ifdef BUG_REFUSES_AT_ONCE
          :: in_flight >= LIMIT -> refuse(call)
#endif
          :: server_closed -> break
          :: SEES_END -> break
          fi
       :: type == Data ->
          if
          :: !stream_open[call]
          :: atomic {
                 stream_open[call] && server_inbox[call] < INBOX -> server_inbox[call]++
             }
          :: atomic {
                 stream_open[call] && server_inbox[call] >= INBOX &&
                 HANDLER_CLOCK && !CLOCK_IS_PAUSED ->
                 stream_open[call] = false;
                 server_inbox[call] = 0
             };
             refuse(call)
          :: server_closed -> break
          :: SEES_END -> break
          fi
       :: else
       fi;
       atomic {
           SERVER_IS_DONE;
           type = 0;
           call = 0
       }
    :: IS_CUT || server_closed -> break
    od;
    server_closed = true
}

/* The server's sender: waits for its queue and for the socket. */
proctype ServerSender() {
    mtype type;
    byte call;

end_idle:
    do
    :: atomic {
           nempty(server_queue) && SERVER_IS_FREE && PEER_GOES_ON ->
           SERVER_BEGINS;
           server_queue?type, call
           STEP
           if
           :: to_client!FIRST_HALF(type, call)
           :: IS_CUT -> break
           fi
       };
       if
       :: atomic {
              SECOND_HALF(to_client, type, call) ->
              SERVER_IS_DONE;
              server_room_taken--;
              type = 0;
              call = 0
          }
       :: IS_CUT -> break
       fi
    :: server_closed -> break
    od;
    server_closed = true
}

/* ------------------------------------------------------------------------------------------------
 * Peers that do not keep to anything.
 */

/* Instead of a server: any frame, in any order, without end. */
proctype HostileServer() {
    byte call;

end_idle:
    do
    :: to_server?_, _
    :: atomic {
           nfull(to_client) ->
           select(call : 0 .. CALLS - 1);
           if
           :: to_client!Response, call
           :: to_client!Data, call
           :: to_client!End, call
           fi;
           call = 0
       }
    od
}

/* Instead of a client: opens every stream once, sends any Data, and never reads. */
proctype HostileClient() {
    byte opened;
    byte call;

end_idle:
    do
    :: atomic { opened < CALLS && nfull(to_server) -> to_server!Request, opened; opened++ }
    :: atomic {
           opened > 0 && nfull(to_server) ->
           select(call : 0 .. opened - 1);
           if
           :: to_server!Data, call
           :: to_server!End, call
           fi;
           call = 0
       }
    :: IS_CUT -> break
    od
}

/* ------------------------------------------------------------------------------------------------
 * What is claimed.
 */
#ifdef HOSTILE_CLIENT
#define ALL_OVER (server_closed && in_flight == 0)
#else
#define ALL_OVER (over_count == CALL_COUNT - ENDLESS_CALLS)
#endif

#define CLIENT_IS_CLEAN (!in_table[0] && !in_table[1] && !in_table[2] && !in_table[3])
#define SERVER_IS_CLEAN (in_flight == 0 && \
    !stream_open[0] && !stream_open[1] && !stream_open[2] && !stream_open[3])
#define NOTHING_ON_THE_WAY (empty(client_queue) && empty(server_queue) && \
    empty(to_server) && empty(to_client) && client_room_taken == 0 && server_room_taken == 0)

/* May end only when all calls are over and nothing of them is left. What is on its way when the
 * connection is cut is lost with it. */
proctype Janitor() {
#ifdef CUT
    ALL_OVER && CLIENT_IS_CLEAN && SERVER_IS_CLEAN
#else
    ALL_OVER && CLIENT_IS_CLEAN && SERVER_IS_CLEAN && NOTHING_ON_THE_WAY
#endif
}

ltl every_call_ends { <> ALL_OVER }

#ifdef CUT
/* The connection breaks at any moment. */
proctype Cutter() {
    cut = true
}
#endif
#ifdef PEER_STOPS
/* The server stops at any moment, or never: this task need not run. */
proctype Stopper() {
    peer_stopped = true
}
#endif

#ifdef TIMERS
proctype Timer(byte call; byte kind) {
    HAS_DEADLINE(kind) -> expired[call] = true
}
#endif

#define START(start, call, kind)     \
    if                               \
    :: IS_CALL(kind) -> run start(call, kind) \
    :: else                          \
    fi

init {
    atomic {
#ifdef HOSTILE_CLIENT
        run HostileClient();
#else
        run ClientSender();
        run ClientReceiver();
        START(Caller, 0, K0);
        START(Caller, 1, K1);
        START(Caller, 2, K2);
        START(Caller, 3, K3);
#endif
#ifdef TIMERS
        START(Timer, 0, K0);
        START(Timer, 1, K1);
#endif
#ifdef HOSTILE_SERVER
        run HostileServer();
#else
        run ServerSender();
        run ServerReceiver();
        START(Handler, 0, K0);
        START(Handler, 1, K1);
        START(Handler, 2, K2);
        START(Handler, 3, K3);
#endif
#ifdef CUT
        run Cutter();
#endif
#ifdef PEER_STOPS
        run Stopper();
#endif
        run Janitor()
    }
}
