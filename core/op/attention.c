// attention.c - scaled dot product attention as one program, and its backward as another.
//
// The scores of all queries and keys are formed at once: softmax(scale * Q K^T + bias) V. Query heads that share a key head are
// rows of one product, so fewer key heads cost no copies. Softmax is in float32 (float64 for float64), and a row of which
// nothing is left unmasked gives zeros, as torch's CPU kernel does (pytorch#103963).
// On XLA's CPU a long causal attention is cut into blocks of queries, each with the keys that it may see.
// Dropout draws its mask from a counter; the state is returned as philox_seed and philox_offset, so that the backward draws
// the same one.
#include <math.h>

#include "op/axes.h"
#include "op/shape.h"

typedef struct attention {
  int64_t batch, heads, key_heads; // key_heads divides heads
  int64_t queries, keys, size, value_size;
  tt_dtype dtype, compute;
  int bias; // argument, -1 for none
  double dropout, scale;
  bool causal;
  int64_t first; // of a block's queries
} attention;

// --- arguments -----------------------------------------------------------------------------------------------------------

static bool fail_broadcast(tt_lowering *l, int64_t a, int64_t b, int dim) {
  tt_fail(l, TT_INVALID_ARGUMENT,
          "The size of tensor a (%lld) must match the size of tensor b (%lld) at non-singleton dimension %d",
          (long long)a, (long long)b, dim);
  return false;
}

static int64_t greatest(int64_t a, int64_t b, int64_t c) { return a > b ? (a > c ? a : c) : b > c ? b : c; }

static bool check_bias(tt_lowering *l, const attention *a) {
  const tt_tensor *t = tt_tensor_arg(l, a->bias);
  const int64_t dims[] = {a->batch, a->heads, a->queries, a->keys};
  for (int i = 0; i < t->rank; ++i) {
    int at = 3 - i; // from the last dimension on
    int64_t size = t->sizes[t->rank - 1 - i];
    if (at < 0 || (size != 1 && size != dims[at]))
      return fail_broadcast(l, at < 0 ? 1 : dims[at], size, at < 0 ? 0 : at);
  }
  return true;
}

// q: the argument of the query; key, value and bias follow it.
static bool read_attention(tt_lowering *l, int q, int dropout, int causal, int scale, attention *a) {
  const tt_tensor *query = tt_tensor_arg(l, q), *key = tt_tensor_arg(l, q + 1), *value = tt_tensor_arg(l, q + 2);
  if (query->rank != 4 || key->rank != 4 || value->rank != 4) {
    tt_fail(l, TT_INVALID_ARGUMENT, "query, key and value must be 4-dimensional, but got %d, %d and %d dimensions",
            query->rank, key->rank, value->rank);
    return false;
  }
  const int64_t *qs = query->sizes, *ks = key->sizes, *vs = value->sizes;
  *a = (attention){.batch = greatest(qs[0], ks[0], vs[0]),
                   .heads = greatest(qs[1], ks[1], vs[1]),
                   .queries = qs[2],
                   .keys = ks[2],
                   .size = qs[3],
                   .value_size = vs[3],
                   .dtype = query->dtype,
                   .compute = tt_compute_dtype(query->dtype),
                   .bias = tt_has(l, q + 3) ? q + 3 : -1,
                   .causal = tt_bool(l, causal)};
  a->dropout = tt_double(l, dropout);
  a->scale = tt_double_or(l, scale, 1 / sqrt((double)(a->size > 0 ? a->size : 1)));
  // Different numbers of key and value heads are both repeated up to the queries'; equal ones stay as they are.
  a->key_heads = ks[1] == vs[1] ? ks[1] : a->heads;
  if (qs[1] != a->heads && qs[1] != 1) return fail_broadcast(l, qs[1], a->heads, 1);
  if (ks[3] != qs[3]) return fail_broadcast(l, qs[3], ks[3], 3);
  if (ks[2] != vs[2]) return fail_broadcast(l, ks[2], vs[2], 2);
  const tt_tensor *all[] = {query, key, value};
  for (int i = 0; i < 3; ++i) {
    int64_t batch = all[i]->sizes[0], heads = all[i]->sizes[1];
    if (batch != 1 && batch != a->batch) return fail_broadcast(l, a->batch, batch, 0);
    if (heads == 0 ? a->heads != 0 : a->heads % heads != 0) return fail_broadcast(l, a->heads, heads, 1);
    if (all[i]->dtype != a->dtype) {
      tt_fail(l, TT_INVALID_ARGUMENT,
              "Expected query, key, and value to have the same dtype, but got query.dtype: %s key.dtype: %s and "
              "value.dtype: "
              "%s instead.",
              tt_dtype_text(query->dtype), tt_dtype_text(key->dtype), tt_dtype_text(value->dtype));
      return false;
    }
  }
  return a->bias < 0 || check_bias(l, a);
}

// --- shapes --------------------------------------------------------------------------------------------------------------------

static tt_value *reshape3(tt_lowering *l, tt_value *x, int64_t n, int64_t rows, int64_t columns) {
  return tt_hlo_reshape(l->b, x, 3, (int64_t[]){n, rows, columns});
}

static tt_value *reshape4(tt_lowering *l, tt_value *x, int64_t n, int64_t heads, int64_t rows, int64_t columns) {
  return tt_hlo_reshape(l->b, x, 4, (int64_t[]){n, heads, rows, columns});
}

// [n or 1, h, rows, columns] -> [batch * heads, rows, columns], each head repeated heads / h times.
static tt_value *spread_heads(tt_lowering *l, const attention *a, tt_value *x, int64_t heads) {
  int64_t h = x->dims[1], dims[] = {a->batch, h, h > 0 ? heads / h : 1, x->dims[2], x->dims[3]};
  if (x->dims[0] != a->batch || h != heads) x = tt_hlo_broadcast_in_dim(l->b, x, 5, dims, (int[]){0, 1, 3, 4});
  return reshape3(l, x, a->batch * heads, dims[3], dims[4]);
}

// The transpose of spread_heads: sums up what was repeated, into the sizes of argument `arg`.
static tt_value *gather_heads(tt_lowering *l, const attention *a, tt_value *x, int64_t heads, int arg) {
  const int64_t *sizes = tt_tensor_arg(l, arg)->sizes;
  int64_t h = sizes[1], dims[] = {a->batch, h, h > 0 ? heads / h : 1, sizes[2], sizes[3]};
  x = tt_hlo_reshape(l->b, x, 5, dims);
  int summed[2], count = 0;
  if (sizes[0] != a->batch) summed[count++] = 0;
  summed[count++] = 2;
  x = tt_hlo_reshape(l->b, tt_hlo_reduce(l->b, x, TT_REDUCE_ADD, count, summed), 4, sizes);
  return tt_hlo_convert(l->b, x, a->dtype);
}

// Queries that share a key head are rows side by side: [batch * key heads, heads / key heads * queries, columns].
static tt_value *group_rows(tt_lowering *l, const attention *a, tt_value *x) {
  int64_t groups = a->batch * a->key_heads, each = a->key_heads > 0 ? a->heads / a->key_heads : 1;
  x = spread_heads(l, a, x, a->heads);
  return reshape3(l, x, groups, each * a->queries, x->dims[2]);
}

static tt_value *exchange_last(tt_lowering *l, tt_value *x) { return tt_hlo_transpose(l->b, x, (int[]){0, 2, 1}); }

// x y^T, x y and x^T y of [n, ., .] operands.
typedef enum product { X_YT, X_Y, XT_Y } product;

static tt_value *multiply(tt_lowering *l, product kind, tt_value *x, tt_value *y, tt_dtype result) {
  // x^T y as (y^T x)^T: x are the weights, a much larger matrix to turn than y and the result.
  if (kind == XT_Y && tt_builder_target(l->b)->dot_lhs_in_order)
    return exchange_last(l, multiply(l, X_Y, exchange_last(l, y), x, result));
  const int zero = 0;
  const tt_dot numbers = {.batch_count = 1,
                          .lhs_batch = &zero,
                          .rhs_batch = &zero,
                          .contract_count = 1,
                          .lhs_contract = (int[]){kind == XT_Y ? 1 : 2},
                          .rhs_contract = (int[]){kind == X_YT ? 2 : 1}};
  return tt_dot_product(l, x, y, &numbers, result);
}

// --- scores ----------------------------------------------------------------------------------------------------------------------

static tt_value *minus_infinity(tt_lowering *l, const tt_value *like) {
  return tt_hlo_broadcast_like(l->b, tt_hlo_min_value(l->b, like->dtype), like);
}

// [batch, heads, queries, keys]: scaled, biased, and -inf where masked.
static tt_value *scores(tt_lowering *l, const attention *a, tt_value *q, tt_value *k) {
  tt_builder *b = l->b;
  tt_value *s = multiply(l, X_YT, q, k, a->compute);
  s = reshape4(l, s, a->batch, a->heads, a->queries, a->keys);
  s = tt_mul(l, s, tt_hlo_constant(b, a->compute, a->scale));
  if (a->bias >= 0) {
    tt_value *bias = tt_operand(l, a->bias);
    if (bias->dtype == TT_BOOL)
      s = tt_hlo_select(b, tt_hlo_broadcast_like(b, bias, s), s, minus_infinity(l, s));
    else
      s = tt_add(l, s, tt_hlo_convert(b, bias, a->compute));
  }
  if (a->causal) {
    const int64_t dims[] = {a->queries, a->keys};
    tt_value *query = tt_hlo_iota(b, TT_S32, 2, dims, 0), *key = tt_hlo_iota(b, TT_S32, 2, dims, 1);
    if (a->first > 0) query = tt_hlo_add(b, query, tt_hlo_constant_like(b, query, (double)a->first));
    tt_value *seen = tt_hlo_compare(b, TT_GE, query, key);
    s = tt_hlo_select(b, tt_hlo_broadcast_like(b, seen, s), s, minus_infinity(l, s));
  }
  return s;
}

// [batch, heads, queries] along the keys.
static tt_value *along_keys(tt_lowering *l, tt_value *row, const tt_value *like) {
  return tt_hlo_broadcast_in_dim(l->b, row, 4, like->dims, (int[]){0, 1, 2});
}

// 0 for -inf: what a row without any key is shifted by, so that its exponentials are 0 and not NaN.
static tt_value *finite_shift(tt_lowering *l, tt_value *row) {
  tt_value *none = tt_hlo_compare(l->b, TT_EQ, row, minus_infinity(l, row));
  return tt_hlo_select(l->b, none, tt_hlo_constant_like(l->b, row, 0), row);
}

// 1 for 0: what the weights of a row without any key are divided by.
static tt_value *nonzero(tt_lowering *l, tt_value *row) {
  tt_value *none = tt_hlo_compare(l->b, TT_EQ, row, tt_hlo_constant_like(l->b, row, 0));
  return tt_hlo_select(l->b, none, tt_hlo_constant_like(l->b, row, 1), row);
}

// Which weights dropout keeps; NULL for all.
static tt_value *kept(tt_lowering *l, const attention *a, tt_value *state) {
  const int64_t dims[] = {a->batch, a->heads, a->queries, a->keys};
  if (a->dropout >= 1) return tt_hlo_splat(l->b, TT_BOOL, 4, dims, 0);
  tt_value *bits = tt_hlo_rng_bits(l->b, state, TT_U32, 4, dims);
  tt_value *limit = tt_hlo_constant_i64(l->b, TT_U32, (int64_t)(a->dropout * 4294967296.0));
  return tt_hlo_compare(l->b, TT_GE, bits, tt_hlo_broadcast_like(l->b, limit, bits));
}

static double dropout_factor(const attention *a) { return a->dropout < 1 ? 1 / (1 - a->dropout) : 0; }

static tt_value *drop(tt_lowering *l, tt_value *x, tt_value *keep) {
  return keep ? tt_hlo_select(l->b, keep, x, tt_hlo_constant_like(l->b, x, 0)) : x;
}

// [batch, heads, queries, keys] as an operand of a product with the narrow float operands: in their dtype, as rows.
static tt_value *as_rows(tt_lowering *l, const attention *a, tt_value *x) {
  int64_t groups = a->batch * a->key_heads, each = a->key_heads > 0 ? a->heads / a->key_heads : 1;
  return tt_hlo_convert(l->b, reshape3(l, x, groups, each * a->queries, a->keys), a->dtype);
}

// --- forward -----------------------------------------------------------------------------------------------------------------------

// Element `index` of the ui64[2] state as a 0-d S64, and back.
static tt_value *state_word(tt_lowering *l, tt_value *state, int64_t index) {
  tt_value *word = tt_hlo_reshape(l->b, tt_hlo_slice_dim(l->b, state, 0, index, index + 1, 1), 0, NULL);
  return tt_hlo_convert(l->b, word, TT_S64);
}

static tt_value *state_of_words(tt_lowering *l, int seed, int offset) {
  const int64_t one = 1;
  tt_value *words[] = {tt_hlo_reshape(l->b, tt_operand_as(l, seed, TT_U64), 1, &one),
                       tt_hlo_reshape(l->b, tt_operand_as(l, offset, TT_U64), 1, &one)};
  return tt_hlo_concatenate(l->b, 2, words, 0);
}

static tt_value *sum_keys(tt_lowering *l, tt_value *x) { return tt_sum_computed(l->b, x, tt_axes_range(3, 4)); }

typedef struct attended {
  tt_value *output, *logsumexp; // [batch, heads, queries, value_size] and without the last, in a->compute
} attended;

// q, k and v are 4-dimensional as torch has them, keep is from `kept`.
static attended attend(tt_lowering *l, const attention *a, tt_value *q, tt_value *k, tt_value *v, tt_value *keep) {
  tt_builder *b = l->b;
  q = group_rows(l, a, q);
  k = spread_heads(l, a, k, a->key_heads);
  v = spread_heads(l, a, v, a->key_heads);
  tt_value *s = scores(l, a, q, k);
  const int last = 3;
  tt_value *shift = finite_shift(l, tt_hlo_reduce(b, s, TT_REDUCE_MAX, 1, &last));
  tt_value *p = tt_hlo_exponential(b, tt_hlo_subtract(b, s, along_keys(l, shift, s)));
  tt_value *o = multiply(l, X_Y, as_rows(l, a, drop(l, p, keep)), v, a->compute);
  o = reshape4(l, o, a->batch, a->heads, a->queries, a->value_size);
  tt_value *sum = sum_keys(l, p);
  o = tt_hlo_divide(b, o, along_keys(l, nonzero(l, sum), o));
  if (keep) o = tt_mul(l, o, tt_hlo_constant(b, a->compute, dropout_factor(a)));
  return (attended){o, tt_hlo_add(b, shift, tt_hlo_log(b, sum))};
}

// --- blocks of queries -------------------------------------------------------------------------------------------------------------

enum { MAX_BLOCKS = 4, BLOCK_QUERIES = 256, BLOCK_SCORES = 1 << 20 };

// Into how many blocks the queries are cut. More of them would save little and take long to compile.
static int count_blocks(tt_lowering *l, const attention *a) {
  bool fits = a->causal && a->bias < 0 && a->dropout == 0 && a->queries >= 2 * BLOCK_QUERIES && a->keys > 0;
  if (!fits || !tt_builder_target(l->b)->attention_in_blocks) return 1;
  if (a->batch * a->heads * a->queries < BLOCK_SCORES / a->keys) return 1;
  return a->queries >= 2 * MAX_BLOCKS * BLOCK_QUERIES ? MAX_BLOCKS : 2;
}

// Block `i` of `count`, with the keys up to its last query's.
static attention block_of(const attention *a, int i, int count) {
  attention block = *a;
  int64_t end = a->queries * (i + 1) / count;
  block.first = a->queries * i / count;
  block.queries = end - block.first;
  if (end < a->keys) block.keys = end;
  return block;
}

static tt_value *block_queries(tt_lowering *l, const attention *block, tt_value *x) {
  return tt_hlo_slice_dim(l->b, x, 2, block->first, block->first + block->queries, 1);
}

static tt_value *block_keys(tt_lowering *l, const attention *block, tt_value *x) {
  return tt_hlo_slice_dim(l->b, x, 2, 0, block->keys, 1);
}

static attended attend_in_blocks(tt_lowering *l, const attention *a, int count, tt_value *q, tt_value *k, tt_value *v) {
  tt_value *outputs[MAX_BLOCKS], *logs[MAX_BLOCKS];
  for (int i = 0; i < count; ++i) {
    attention block = block_of(a, i, count);
    attended one =
        attend(l, &block, block_queries(l, &block, q), block_keys(l, &block, k), block_keys(l, &block, v), NULL);
    outputs[i] = one.output;
    logs[i] = one.logsumexp;
  }
  return (attended){tt_hlo_concatenate(l->b, count, outputs, 2), tt_hlo_concatenate(l->b, count, logs, 2)};
}

// (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale) ->
// (output, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask)
void tt_lower_attention(tt_lowering *l) {
  attention a;
  if (!read_attention(l, 0, 4, 5, 7, &a)) return;
  tt_value *q = tt_operand(l, 0), *k = tt_operand(l, 1), *v = tt_operand(l, 2), *keep = NULL;
  if (a.dropout > 0) {
    tt_value *state = l->source.random_state(l->source.user, NULL, a.batch * a.heads * a.queries * a.keys);
    tt_set_result(l, 6, state_word(l, state, 0));
    tt_set_result(l, 7, state_word(l, state, 1));
    keep = kept(l, &a, state);
  } else { // autograd of compiled graphs saves them, whatever they are
    for (int i = 6; i <= 7; ++i) tt_set_result(l, i, tt_hlo_constant_i64(l->b, TT_S64, 0));
  }
  int blocks = count_blocks(l, &a);
  attended all = blocks > 1 ? attend_in_blocks(l, &a, blocks, q, k, v) : attend(l, &a, q, k, v, keep);
  tt_set_result(l, 0, tt_hlo_convert(l->b, all.output, a.dtype));
  tt_set_order_like(l, 0, 0);
  tt_set_result(l, 1, all.logsumexp);
}

// --- backward ------------------------------------------------------------------------------------------------------------------------

// The bias's gradient: what its broadcasting repeated is summed up.
static tt_value *bias_gradient(tt_lowering *l, const attention *a, tt_value *ds) {
  const tt_tensor *t = tt_tensor_arg(l, a->bias);
  int summed[4], count = 0;
  for (int i = 0; i < 4; ++i) {
    int at = t->rank - 4 + i;
    if (at < 0 || (t->sizes[at] == 1 && ds->dims[i] != 1)) summed[count++] = i;
  }
  tt_value *g = tt_hlo_reduce(l->b, ds, TT_REDUCE_ADD, count, summed);
  return tt_hlo_convert(l->b, tt_hlo_reshape(l->b, g, t->rank, t->sizes), t->dtype);
}

enum { QUERY, KEY, VALUE, BIAS, GRADIENTS };

// The operands of the backward, 4-dimensional as torch has them, and which gradients are wanted.
typedef struct backward {
  tt_value *go, *q, *k, *v, *logsumexp, *keep;
  const int64_t *mask;
} backward;

// With weights p = softmax(s), o = p v: ds = p * (dp - sum(p * dp)), dp = do v^T; a dropped weight's dp is 0.
// Gradients are [batch, heads or key_heads, queries or keys, .] in a->compute, the bias's its own; NULL where not wanted.
static void attend_backward(tt_lowering *l, const attention *a, const backward *operands, tt_value **gradients) {
  tt_builder *b = l->b;
  const int64_t *mask = operands->mask;
  tt_value *q = group_rows(l, a, operands->q), *k = spread_heads(l, a, operands->k, a->key_heads);
  tt_value *v = spread_heads(l, a, operands->v, a->key_heads), *go = group_rows(l, a, operands->go);
  tt_value *s = scores(l, a, q, k), *keep = operands->keep;
  tt_value *shift = finite_shift(l, operands->logsumexp);
  tt_value *p = tt_hlo_exponential(b, tt_hlo_subtract(b, s, along_keys(l, shift, s)));
  // Rounding of a large logsumexp is an error common to its row, and leaves weights that do not add up to 1.
  p = tt_hlo_divide(b, p, along_keys(l, nonzero(l, sum_keys(l, p)), p));
  tt_value *factor = keep ? tt_hlo_constant(b, a->compute, dropout_factor(a)) : NULL;
  if (mask[VALUE]) {
    tt_value *weights = keep ? tt_mul(l, drop(l, p, keep), factor) : p;
    tt_value *dv = multiply(l, XT_Y, as_rows(l, a, weights), go, a->compute);
    gradients[VALUE] = reshape4(l, dv, a->batch, a->key_heads, a->keys, a->value_size);
  }
  if (!mask[QUERY] && !mask[KEY] && !mask[BIAS]) return;
  tt_value *dp = reshape4(l, multiply(l, X_YT, go, v, a->compute), a->batch, a->heads, a->queries, a->keys);
  if (keep) dp = tt_mul(l, drop(l, dp, keep), factor);
  tt_value *mean = sum_keys(l, tt_hlo_multiply(b, p, dp));
  tt_value *ds = tt_hlo_multiply(b, p, tt_hlo_subtract(b, dp, along_keys(l, mean, dp)));
  if (mask[BIAS] && a->bias >= 0) gradients[BIAS] = bias_gradient(l, a, ds);
  tt_value *rows = as_rows(l, a, tt_mul(l, ds, tt_hlo_constant(b, a->compute, a->scale)));
  if (mask[QUERY])
    gradients[QUERY] = reshape4(l, multiply(l, X_Y, rows, k, a->compute), a->batch, a->heads, a->queries, a->size);
  if (mask[KEY])
    gradients[KEY] = reshape4(l, multiply(l, XT_Y, rows, q, a->compute), a->batch, a->key_heads, a->keys, a->size);
}

// A block's gradients of the queries stand side by side with the others'; those of the keys, of which it sees the first, are
// added to theirs.
static void attend_backward_in_blocks(tt_lowering *l, const attention *a, int count, const backward *operands,
                                      tt_value **gradients) {
  tt_value *queries[MAX_BLOCKS];
  for (int i = 0; i < count; ++i) {
    attention block = block_of(a, i, count);
    backward part = *operands;
    part.go = block_queries(l, &block, part.go);
    part.q = block_queries(l, &block, part.q);
    part.k = block_keys(l, &block, part.k);
    part.v = block_keys(l, &block, part.v);
    part.logsumexp = block_queries(l, &block, part.logsumexp);
    tt_value *own[GRADIENTS] = {NULL};
    attend_backward(l, &block, &part, own);
    queries[i] = own[QUERY];
    for (int j = KEY; j <= VALUE; ++j) {
      if (!own[j]) continue;
      tt_value *whole = tt_pad_dim_zero(l->b, own[j], 2, 0, a->keys - block.keys, 0);
      gradients[j] = gradients[j] ? tt_hlo_add(l->b, gradients[j], whole) : whole;
    }
  }
  if (queries[0]) gradients[QUERY] = tt_hlo_concatenate(l->b, count, queries, 2);
}

// (grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p,
// is_causal, philox_seed, philox_offset, scale) -> (grad_query, grad_key, grad_value, grad_attn_bias)
void tt_lower_attention_backward(tt_lowering *l) {
  attention a;
  if (!read_attention(l, 1, 12, 13, 16, &a)) return;
  int mask_count;
  backward operands = {tt_operand(l, 0),
                       tt_operand(l, 1),
                       tt_operand(l, 2),
                       tt_operand(l, 3),
                       tt_operand_as(l, 7, a.compute),
                       NULL,
                       tt_ints(l, 5, &mask_count)};
  if (a.dropout > 0) operands.keep = kept(l, &a, a.dropout < 1 ? state_of_words(l, 14, 15) : NULL);
  tt_value *gradients[GRADIENTS] = {NULL};
  int blocks = count_blocks(l, &a);
  if (blocks > 1)
    attend_backward_in_blocks(l, &a, blocks, &operands, gradients);
  else
    attend_backward(l, &a, &operands, gradients);
  for (int i = QUERY; i <= VALUE; ++i) {
    if (!gradients[i]) continue;
    tt_set_result(l, i, gather_heads(l, &a, gradients[i], i == QUERY ? a.heads : a.key_heads, 1 + i));
    tt_set_order_like(l, i, 1 + i);
  }
  if (gradients[BIAS]) tt_set_result(l, BIAS, gradients[BIAS]);
}
