// builder.h - builds one StableHLO program as text, typed value by typed value.
//
// Failure is sticky: the first error (a shape that does not fit, host memory exhausted) is kept in the builder, every later
// call does nothing and returns a harmless scalar value, and tt_builder_finish reports. So lowerings read like formulas and
// need no checks of their own. Operands that do not fit (TT_MISMATCH) are the caller's arguments, which the lowering should have
// refused in torch's words, or its own mistake.
//
// The harmless value is a float32 scalar whose dims may be read with small indices of either sign (each is 1), so that a
// lowering that computes with sizes stays in bounds. So are those of every other value: what lies outside its rank reads as 1, and
// a tensor of too few dims fails in the builder. A NULL operand is a failure, not a crash.
//
// Values live in the builder's arena until tt_builder_free. One thread at a time.
//
// The text uses the StableHLO and CHLO dialects; CHLO has the special functions that every PJRT plugin expands itself.
#ifndef TT_HLO_BUILDER_H_
#define TT_HLO_BUILDER_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/string.h"

typedef struct tt_builder tt_builder;

// A typed SSA value. Immutable; dims has `rank` entries and TT_DIMS_GUARD ones before and behind them.
typedef struct tt_value {
  tt_dtype dtype;
  int rank;
  const int64_t *dims;
  int64_t id;      // printed as %id
  int sub;         // result number of an op with several results, -1 for a single result
  bool transposed; // the result of a transpose, or made element by element of one: a compiler may lay it out otherwise
  struct tt_value *untransposed; // the operand of the transpose that made it; NULL: unknown, or none did
  const int *permutation;        // of that transpose
  bool product; // the result of a dot or convolution, also behind a barrier: no other op is fused into it
} tt_value;

// What a lowering, and an op of this builder, may know about where the program will run. The one seam between targets: nothing
// else in the core asks.
typedef struct tt_target {
  bool is_tpu;              // TPU: precision attributes are honoured; CPU: they are ignored, passes are written out
  int generation;           // TPU generation (5, 6, 7), 0 otherwise
  bool conv_needs_forward;  // gradients of convolutions are fast only as plain forward convolutions (XLA CPU)
  bool sums_as_dots;        // sums of computed values run faster as products with ones (XLA CPU up to API 0.106)
  bool rsqrt_by_division;   // rsqrt of many elements is slower than the reciprocal of a square root (XLA CPU)
  bool concat_copies;       // parts of an operand are copied before they are concatenated (XLA CPU)
  bool scatter_flat;        // a scatter of elements is faster with one index into a flat operand (XLA CPU)
  bool attention_in_blocks; // work that a causal mask hides is worth several smaller products (XLA CPU)
  bool scan_by_dots;        // running sums along the last dimension run faster as products with a triangle (XLA CPU)
  bool dot_lhs_in_order;    // a dot is slow unless the last dimension of its lhs is contracted (XLA CPU)
  bool bf16_dot; // a dot of bf16 operands is faster than one of f32 (XLA CPU: where the processor has such products)
} tt_target;

// Float32 matmul and convolution arithmetic: one bfloat16 pass, three, or full float32.
typedef enum tt_precision { TT_PRECISION_MEDIUM, TT_PRECISION_HIGH, TT_PRECISION_HIGHEST } tt_precision;

tt_status tt_builder_create(const tt_target *target, tt_builder **out_builder);
void tt_builder_free(tt_builder *b); // NULL is fine
tt_arena *tt_builder_arena(tt_builder *b);
const tt_target *tt_builder_target(const tt_builder *b);
// Records a failure (kept if it is the first, freed otherwise) and returns a harmless value.
tt_value *tt_builder_fail(tt_builder *b, tt_status status);
bool tt_builder_failed(const tt_builder *b);
// Takes the failure out of the builder; NULL when there is none.
tt_status tt_builder_take_status(tt_builder *b);
// Number of ops printed so far: what decides on compile options.
int64_t tt_builder_op_count(const tt_builder *b);

// Appends a parameter of the program; parameters are numbered in the order of these calls.
tt_value *tt_builder_parameter(tt_builder *b, tt_dtype dtype, int rank, const int64_t *dims);
int tt_builder_parameter_count(const tt_builder *b);
// Declares that output `output` may reuse the memory of parameter `parameter` (tf.aliasing_output); same type required.
void tt_builder_alias(tt_builder *b, int parameter, int output);
// Ends the program with these results; *out_text is the module, owned by the builder.
tt_status tt_builder_finish(tt_builder *b, int count, tt_value *const *results, const char **out_text,
                            int64_t *out_size);

// --- shapes ---------------------------------------------------------------------------------------------------------
int64_t tt_value_count(const tt_value *x); // number of elements
enum { TT_DIMS_GUARD = 8 };
static inline size_t tt_guarded_size(int rank) { return (size_t)rank + 2 * TT_DIMS_GUARD; }
// Copies `rank` dims into a block of tt_guarded_size(rank) and puts ones around; returns where they stand in it.
const int64_t *tt_guard_dims(int64_t *block, int rank, const int64_t *dims);
bool tt_value_same_shape(const tt_value *x, const tt_value *y);
// "[2, 3]" in the builder's arena, for messages.
const char *tt_shape_text(tt_arena *arena, int rank, const int64_t *dims);

// --- constants ------------------------------------------------------------------------------------------------------
// A scalar (rank 0) constant; exact for all integers up to 64 bits and for every finite or special double. A double is
// truncated toward zero for an integer dtype and saturates at its limits (NaN is 0); an int64_t wraps as in C, so a UInt64
// above INT64_MAX is given by its bits.
tt_value *tt_hlo_constant(tt_builder *b, tt_dtype dtype, double value);
tt_value *tt_hlo_constant_i64(tt_builder *b, tt_dtype dtype, int64_t value);
tt_value *tt_hlo_constant_complex(tt_builder *b, tt_dtype dtype, double real, double imag);
// A constant of x's shape (dtype of x), or of the given shape, with every element `value`.
tt_value *tt_hlo_constant_like(tt_builder *b, const tt_value *x, double value);
tt_value *tt_hlo_splat(tt_builder *b, tt_dtype dtype, int rank, const int64_t *dims, double value);
// A rank-1 constant of integers.
tt_value *tt_hlo_constant_vector(tt_builder *b, tt_dtype dtype, int count, const int64_t *values);
// The largest / smallest value of a dtype as a scalar: +-inf for floats (the limits of 8-bit floats that have no infinity),
// the limits for integers, true / false for bool.
tt_value *tt_hlo_max_value(tt_builder *b, tt_dtype dtype);
tt_value *tt_hlo_min_value(tt_builder *b, tt_dtype dtype);
tt_value *tt_hlo_iota(tt_builder *b, tt_dtype dtype, int rank, const int64_t *dims, int dimension);

// --- elementwise: operands must have the same shape and dtype -----------------------------------------------------------
#define TT_HLO_UNARY(X)                                                                                                 \
  X(abs, "stablehlo.abs") X(negate, "stablehlo.negate") X(sign, "stablehlo.sign") X(exponential, "stablehlo.exponential") \
  X(exponential_minus_one, "stablehlo.exponential_minus_one") X(log, "stablehlo.log")                                   \
  X(log_plus_one, "stablehlo.log_plus_one") X(logistic, "stablehlo.logistic") X(sqrt, "stablehlo.sqrt")                 \
  X(rsqrt, "stablehlo.rsqrt") X(cbrt, "stablehlo.cbrt") X(tanh, "stablehlo.tanh") X(sine, "stablehlo.sine")              \
  X(cosine, "stablehlo.cosine") X(tan, "stablehlo.tan") X(floor, "stablehlo.floor") X(ceil, "stablehlo.ceil")            \
  X(round_nearest_even, "stablehlo.round_nearest_even") X(not, "stablehlo.not") X(popcnt, "stablehlo.popcnt")            \
  X(count_leading_zeros, "stablehlo.count_leading_zeros")                                                                \
  X(erf, "chlo.erf") X(erfc, "chlo.erfc") X(erf_inv, "chlo.erf_inv") X(asin, "chlo.asin") X(acos, "chlo.acos")           \
  X(atan, "chlo.atan") X(sinh, "chlo.sinh") X(cosh, "chlo.cosh") X(asinh, "chlo.asinh") X(acosh, "chlo.acosh")           \
  X(atanh, "chlo.atanh") X(bessel_i1e, "chlo.bessel_i1e") X(conj, "chlo.conj")
#define TT_HLO_BINARY(X)                                                                                                \
  X(add, "stablehlo.add") X(subtract, "stablehlo.subtract") X(multiply, "stablehlo.multiply")                            \
  X(divide, "stablehlo.divide") X(remainder, "stablehlo.remainder") X(power, "stablehlo.power")                          \
  X(atan2, "stablehlo.atan2") X(maximum, "stablehlo.maximum") X(minimum, "stablehlo.minimum") X(and, "stablehlo.and")    \
  X(or, "stablehlo.or") X(xor, "stablehlo.xor") X(shift_left, "stablehlo.shift_left")                                    \
  X(shift_right_arithmetic, "stablehlo.shift_right_arithmetic") X(shift_right_logical, "stablehlo.shift_right_logical")  \
  X(next_after, "chlo.next_after")
#define X(name, text) tt_value *tt_hlo_##name(tt_builder *b, tt_value *x);
TT_HLO_UNARY(X)
#undef X
#define X(name, text) tt_value *tt_hlo_##name(tt_builder *b, tt_value *x, tt_value *y);
TT_HLO_BINARY(X)
#undef X
// Each checks its dtype: ordering, converting and the remainder of complex numbers abort some plugins. Unsigned abs and sign,
// complex abs (real result), real conj (x itself) and 8-bit floats are taken care of. Bool takes add (or), multiply (and),
// maximum, minimum and the logical ops, nothing else. 64-bit division and remainder are written out for a TPU.
// Any op of these kinds by its text, e.g. "stablehlo.add".
tt_value *tt_hlo_unary(tt_builder *b, const char *op, tt_value *x);
tt_value *tt_hlo_binary(tt_builder *b, const char *op, tt_value *x, tt_value *y);

typedef enum tt_compare { TT_EQ, TT_NE, TT_LT, TT_LE, TT_GT, TT_GE } tt_compare;
tt_value *tt_hlo_compare(tt_builder *b, tt_compare direction, tt_value *x, tt_value *y);            // -> BOOL
tt_value *tt_hlo_select(tt_builder *b, tt_value *predicate, tt_value *on_true, tt_value *on_false); // same shapes
tt_value *tt_hlo_clamp(tt_builder *b, tt_value *low, tt_value *x, tt_value *high);                  // same shapes
tt_value *tt_hlo_is_finite(tt_builder *b, tt_value *x);
tt_value *tt_hlo_is_nan(tt_builder *b, tt_value *x); // x != x; false for integers
tt_value *tt_hlo_is_inf(tt_builder *b, tt_value *x);
// Value conversion as torch's: float -> int truncates, number -> bool is `!= 0`, complex -> real takes the real part. Float to
// an integer of 8 or 16 bits or to UInt32 wraps (-1.0 is 255), to a wider one saturates; NaN becomes 0.
tt_value *tt_hlo_convert(tt_builder *b, tt_value *x, tt_dtype dtype);
tt_value *tt_hlo_reduce_precision(tt_builder *b, tt_value *x, int exponent_bits, int mantissa_bits);
// Reinterprets bits. Sizes equal: same shape; otherwise the last dimension is added or dropped, as StableHLO does. Bool is a
// byte of 0 or 1; complex numbers are pairs (StableHLO knows neither, a few more ops do it).
tt_value *tt_hlo_bitcast_convert(tt_builder *b, tt_value *x, tt_dtype dtype, int rank, const int64_t *dims);
tt_value *tt_hlo_real(tt_builder *b, tt_value *x);
tt_value *tt_hlo_imag(tt_builder *b, tt_value *x); // zeros for a real x
tt_value *tt_hlo_complex(tt_builder *b, tt_value *real, tt_value *imag);
tt_value *tt_hlo_optimization_barrier(tt_builder *b, tt_value *x);
// A value that is `transposed` as one that lies in memory row by row, with no transpose for a compiler to move. Others: as they are.
tt_value *tt_hlo_copy_transposed(tt_builder *b, tt_value *x);
// The values together: none of the results is there before all operands are. out_results may not be xs.
void tt_hlo_optimization_barrier_n(tt_builder *b, int count, tt_value *const *xs, tt_value **out_results);

// --- shape --------------------------------------------------------------------------------------------------------
tt_value *tt_hlo_reshape(tt_builder *b, tt_value *x, int rank, const int64_t *dims);
tt_value *tt_hlo_transpose(tt_builder *b, tt_value *x,
                           const int *permutation); // result dim i = operand dim permutation[i]
tt_value *tt_hlo_reverse(tt_builder *b, tt_value *x, int count, const int *dimensions);
// Operand dimension i becomes result dimension map[i]; a size-1 operand dimension may grow.
tt_value *tt_hlo_broadcast_in_dim(tt_builder *b, tt_value *x, int rank, const int64_t *dims, const int *map);
// torch/numpy broadcasting: aligned at the last dimension.
tt_value *tt_hlo_broadcast_to(tt_builder *b, tt_value *x, int rank, const int64_t *dims);
tt_value *tt_hlo_broadcast_like(tt_builder *b, tt_value *x, const tt_value *like);
// The common broadcast shape of both, each broadcast to it.
void tt_hlo_broadcast_both(tt_builder *b, tt_value **x, tt_value **y);
tt_value *tt_hlo_slice(tt_builder *b, tt_value *x, const int64_t *starts, const int64_t *limits,
                       const int64_t *strides);
// One dimension [start, limit) step `stride`, the rest whole.
tt_value *tt_hlo_slice_dim(tt_builder *b, tt_value *x, int dim, int64_t start, int64_t limit, int64_t stride);
// starts: rank scalars of one integer dtype, clamped by XLA so that the slice fits.
tt_value *tt_hlo_dynamic_slice(tt_builder *b, tt_value *x, tt_value *const *starts, const int64_t *sizes);
tt_value *tt_hlo_dynamic_update_slice(tt_builder *b, tt_value *x, tt_value *update, tt_value *const *starts);
tt_value *tt_hlo_pad(tt_builder *b, tt_value *x, tt_value *fill, const int64_t *low, const int64_t *high,
                     const int64_t *interior); // negative low / high crop
tt_value *tt_hlo_concatenate(tt_builder *b, int count, tt_value *const *xs, int dim);
tt_value *tt_hlo_squeeze_dim(tt_builder *b, tt_value *x, int dim);   // drops a size-1 dimension
tt_value *tt_hlo_unsqueeze_dim(tt_builder *b, tt_value *x, int dim); // adds a size-1 dimension at `dim`

// --- reductions and windows -----------------------------------------------------------------------------------------
typedef enum tt_reduction {
  TT_REDUCE_ADD,
  TT_REDUCE_MULTIPLY,
  TT_REDUCE_MAX,
  TT_REDUCE_MIN,
  TT_REDUCE_AND,
  TT_REDUCE_OR
} tt_reduction;
// The neutral element of a reduction as a scalar constant.
tt_value *tt_hlo_reduction_identity(tt_builder *b, tt_reduction kind, tt_dtype dtype);
// Drops the reduced dimensions. MAX and MIN propagate NaN (given xla_cpu_enable_fast_min_max=false on XLA CPU); over the last
// dimensions of a large x they are two reductions where the target is faster so.
tt_value *tt_hlo_reduce(tt_builder *b, tt_value *x, tt_reduction kind, int count, const int *dims);

// A body builds the region of an op from its block arguments; only those of case may use values from outside.
typedef void (*tt_body)(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user);
// A body that combines two values by the binary op whose text, "stablehlo.add", is `user`.
void tt_hlo_combine_body(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user);
// count operands reduced together; the body gets count left and count right scalars and gives count scalars.
void tt_hlo_reduce_with(tt_builder *b, int count, tt_value *const *xs, tt_value *const *initial, int dim_count,
                        const int *dims, tt_body body, void *user, tt_value **out_results);
typedef struct tt_window {
  const int64_t *size, *stride, *base_dilation, *window_dilation, *pad_low,
      *pad_high; // `rank` entries; NULL = 1s or 0s
} tt_window;
tt_value *tt_hlo_reduce_window(tt_builder *b, tt_value *x, tt_reduction kind, const tt_window *window);
void tt_hlo_reduce_window_with(tt_builder *b, int count, tt_value *const *xs, tt_value *const *initial,
                               const tt_window *window, tt_body body, void *user, tt_value **out_results);
// Adds each source element to where the window's selected (greatest) element of x stands: the backward of max pooling. Of
// equal ones the first. A NaN loses to what follows it (torch would select the last NaN). Dilation must be NULL.
tt_value *tt_hlo_select_and_scatter_add(tt_builder *b, tt_value *x, tt_value *source, const tt_window *window);
// In sort and while, out_results may be the operands' own array, in case that of `likes`.
// Sorts `count` operands together along `dim`; the body compares (x0, y0, x1, y1, ...) scalars and gives one BOOL: does x
// come first. It must be a strict order.
void tt_hlo_sort(tt_builder *b, int count, tt_value *const *xs, int dim, bool stable, tt_body compare, void *user,
                 tt_value **out_results);
// The k greatest elements along the last dimension, greatest first, equal ones in order, with their S32 positions. x is real;
// floats are ordered totally: -NaN < -inf < -0 < 0 < inf < NaN.
void tt_hlo_top_k(tt_builder *b, tt_value *x, int64_t k, tt_value **out_values, tt_value **out_indices);
// Repeats body while condition gives true. Values from outside must be carried.
void tt_hlo_while(tt_builder *b, int count, tt_value *const *initial, tt_body condition, tt_body body, void *user,
                  tt_value **out_results);
// What the body gives for users[index], index being an S32 scalar; for the last of them if there is none of that number. The
// body has no arguments and may use values from outside; its `count` results have the types of `likes`.
void tt_hlo_case(tt_builder *b, tt_value *index, int branch_count, tt_body body, void *const *users, int count,
                 tt_value *const *likes, tt_value **out_results);
// The operands as they are, or what the body makes of them (of the same types) if the BOOL scalar `condition` is true: a while
// that runs at most once, so that what is seldom needed costs little. As for while, values from outside must be operands.
void tt_hlo_when(tt_builder *b, tt_value *condition, int count, tt_value *const *xs, tt_body body, void *user,
                 tt_value **out_results);

// --- indexing -------------------------------------------------------------------------------------------------------
typedef struct tt_gather {
  int offset_count;
  const int *offset_dims; // result dims that index inside the slice
  int collapsed_count;
  const int *collapsed_dims; // operand dims of slice size 1 that are dropped
  int batching_count;
  const int *operand_batching_dims;
  const int *index_batching_dims;
  int map_count;
  const int *start_index_map; // operand dim of each entry of an index vector
  int index_vector_dim;
  const int64_t *slice_sizes; // rank of the operand
} tt_gather;
// Out-of-range starts are clamped by XLA.
tt_value *tt_hlo_gather(tt_builder *b, tt_value *x, tt_value *indices, const tt_gather *numbers);
typedef struct tt_scatter {
  int window_count;
  const int *update_window_dims;
  int inserted_count;
  const int *inserted_window_dims;
  int batching_count;
  const int *input_batching_dims;
  const int *index_batching_dims;
  int map_count;
  const int *scatter_dims_to_operand_dims;
  int index_vector_dim;
  bool sorted, unique;
} tt_scatter;
typedef enum tt_combine {
  TT_COMBINE_REPLACE,
  TT_COMBINE_ADD,
  TT_COMBINE_MULTIPLY,
  TT_COMBINE_MAX,
  TT_COMBINE_MIN
} tt_combine;
// Out-of-range updates are dropped by XLA.
tt_value *tt_hlo_scatter(tt_builder *b, tt_value *x, tt_value *indices, tt_value *updates, const tt_scatter *numbers,
                         tt_combine combine);

// --- linear algebra -------------------------------------------------------------------------------------------------
typedef struct tt_dot {
  int batch_count;
  const int *lhs_batch, *rhs_batch;
  int contract_count;
  const int *lhs_contract, *rhs_contract;
} tt_dot;
// One dot_general without any precision policy: operands and result dtype as given (bf16, bf16 -> f32 is allowed).
tt_value *tt_hlo_dot_general(tt_builder *b, tt_value *x, tt_value *y, const tt_dot *numbers, tt_dtype result,
                             tt_precision precision);
typedef struct tt_convolution {
  int spatial; // number of spatial dimensions; layouts are NC..., OI..., NC...
  const int64_t *stride, *pad_low, *pad_high, *lhs_dilation, *rhs_dilation; // `spatial` entries; NULL = 1s or 0s
  int64_t feature_groups, batch_groups;                                     // 1 when unused
  const char *dimension_numbers; // NULL = "[b, f, 0, 1] x [o, i, 0, 1] -> [b, f, 0, 1]" for `spatial`
} tt_convolution;
tt_value *tt_hlo_convolution(tt_builder *b, tt_value *x, tt_value *filter, const tt_convolution *numbers,
                             tt_dtype result, tt_precision precision);
tt_value *tt_hlo_cholesky(tt_builder *b, tt_value *x, bool lower);
tt_value *tt_hlo_triangular_solve(tt_builder *b, tt_value *a, tt_value *x, bool left, bool lower, bool unit_diagonal,
                                  const char *transpose); // "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"
tt_value *tt_hlo_fft(tt_builder *b, tt_value *x, const char *type, int count,
                     const int64_t *lengths); // "FFT", "IFFT", "RFFT", "IRFFT"

// --- random ---------------------------------------------------------------------------------------------------------
// Threefry counter bits: state is ui64[2] {seed, offset}; the result has the given shape and is U32 or U64.
tt_value *tt_hlo_rng_bits(tt_builder *b, tt_value *state, tt_dtype dtype, int rank, const int64_t *dims);

#endif // TT_HLO_BUILDER_H_
