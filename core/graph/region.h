// region.h - the regions of a recorded program: parts that an op with regions runs as its own, a loop's body or a branch.
//
// A region is recorded like a program, by a recorder and into a builder of its own, and kept as a fragment, which the op inlines
// into its region. It has arguments; what else it reads of the program around it becomes a further parameter of the fragment, a
// capture. What it cannot do by itself comes out of it: the storages from outside that it writes and its checks are results behind
// the others, and its random numbers are drawn from a state that the op hands in.
//
// Its recorder belongs to the thread that records.
#ifndef TT_GRAPH_REGION_H_
#define TT_GRAPH_REGION_H_

#include "base/status.h"
#include "graph/recorder.h"
#include "hlo/fragment.h"

// A storage from outside that a region writes.
typedef struct tt_region_write {
  tt_storage *storage; // kept by the recorder of the program around the region
  tt_value *before;    // its value there, whose type the new one has
} tt_region_write;

// Immutable; in the arena of the builder of the program around it.
typedef struct tt_region {
  tt_fragment fragment; // parameters: arguments, captures; results: those of the region, writes, checks
  int argument_count, capture_count, result_count, write_count, check_count;
  const tt_capture *captures;
  const tt_region_write *writes;
  const tt_recorded_check *checks;
  bool is_random;       // it has a random state
  int64_t random_count; // 4-byte draws of one run
} tt_region;

// Starts a region of the program of `outer`. tt_recorder_free ends it, whatever comes of it.
tt_status tt_region_init(tt_recorder *r, tt_recorder *outer);
// Adds an argument with these sizes.
tt_status tt_region_argument(tt_recorder *r, tt_dtype dtype, int rank, const int64_t *sizes,
                             tt_recorded_result *out_argument);
// What was recorded, with the values of these tensors as results, for the program around it. TT_NOT_IMPLEMENTED for a write
// that makes another dtype of a storage from outside, or its first value.
tt_status tt_region_take(tt_recorder *r, const tt_tensor *results, int count, tt_region **out_region);

// The ops. `r` is the recorder of the program around the regions: there their checks are made, their random state is drawn and
// what they write is written.
// *out_results, in its arena, are values of the op.

// Repeats `body` while `condition` (of one BOOL scalar) is true of the carried values, which both take. Errors:
// TT_NOT_IMPLEMENTED for random numbers, of which nobody knows how many are drawn, and for checks and writes in the condition.
tt_status tt_region_while(tt_recorder *r, const tt_region *condition, const tt_region *body, int count,
                          tt_value *const *carried, tt_value ***out_results);
// What the branch `index`, an integer or BOOL scalar, gives. Branches have no arguments and give the same types.
tt_status tt_region_case(tt_recorder *r, tt_value *index, int count, tt_region *const *branches,
                         tt_value ***out_results);
// Runs `body` for i = 0 .. length - 1 on the carried values and on x[i] of each x; it gives the next carried values, and of each
// further result y the op gives all y[i] in one value.
tt_status tt_region_scan(tt_recorder *r, const tt_region *body, int64_t length, int carried_count,
                         tt_value *const *carried, int xs_count, tt_value *const *xs, tt_value ***out_results);

#endif // TT_GRAPH_REGION_H_
