// linalg.c - contractions, convolutions, factorizations, Fourier transforms and random bits.
#include <string.h>

#include "hlo/internal.h"

static const char *precision_text(tt_precision precision) {
  switch (precision) {
  case TT_PRECISION_MEDIUM: return "DEFAULT";
  case TT_PRECISION_HIGH: return "HIGH";
  case TT_PRECISION_HIGHEST: return "HIGHEST";
  }
  return "HIGHEST";
}

// --- dot_general ----------------------------------------------------------------------------------------------------------------

static bool pairs_match(const tt_value *x, const tt_value *y, int count, const int *x_dims, const int *y_dims) {
  for (int i = 0; i < count; ++i) {
    if (x->dims[x_dims[i]] != y->dims[y_dims[i]]) return false;
  }
  return true;
}

// Dimensions of x that are neither batch nor contracted, appended to dims. Returns the new rank, -1 when a dimension number
// is out of range or used twice.
static int append_free_dims(const tt_value *x, int batch_count, const int *batch, int contract_count,
                            const int *contract, int rank, int64_t *dims) {
  if (!tt_hlo_distinct_dims(x->rank, batch_count, batch) || !tt_hlo_distinct_dims(x->rank, contract_count, contract))
    return -1;
  uint64_t used = 0;
  for (int i = 0; i < batch_count; ++i) used |= UINT64_C(1) << batch[i];
  for (int i = 0; i < contract_count; ++i) {
    if ((used >> contract[i] & 1) != 0) return -1;
    used |= UINT64_C(1) << contract[i];
  }
  for (int i = 0; i < x->rank; ++i) {
    if ((used >> i & 1) == 0) dims[rank++] = x->dims[i];
  }
  return rank;
}

// The result is batch, then x's free, then y's free dimensions.
static int dot_shape(const tt_value *x, const tt_value *y, const tt_dot *n, int64_t *dims) {
  int rank =
      append_free_dims(x, n->batch_count, n->lhs_batch, n->contract_count, n->lhs_contract, n->batch_count, dims);
  if (rank >= 0)
    rank = append_free_dims(y, n->batch_count, n->rhs_batch, n->contract_count, n->rhs_contract, rank, dims);
  if (rank < 0 || !pairs_match(x, y, n->batch_count, n->lhs_batch, n->rhs_batch) ||
      !pairs_match(x, y, n->contract_count, n->lhs_contract, n->rhs_contract))
    return -1;
  for (int i = 0; i < n->batch_count; ++i) dims[i] = x->dims[n->lhs_batch[i]];
  return rank;
}

static void emit_dim_pairs(tt_builder *b, const char *before, int count, const int *lhs, const int *rhs) {
  tt_emit_ints(b, before, count, lhs);
  tt_emit_ints(b, " x ", count, rhs);
}

// "[HIGH, HIGH]", one for each operand, each between prefix and suffix.
static void emit_precision(tt_builder *b, const char *prefix, const char *suffix, tt_precision precision) {
  for (int i = 0; i < 2; ++i) {
    tt_emit(b, i == 0 ? "[" : ", ");
    tt_emit(b, prefix);
    tt_emit(b, precision_text(precision));
    tt_emit(b, suffix);
  }
  tt_emit(b, "]");
}

static tt_value *marked_product(tt_value *result) {
  if (result != &tt_hlo_poison) result->product = true;
  return result;
}

tt_value *tt_hlo_dot_general(tt_builder *b, tt_value *x, tt_value *y, const tt_dot *n, tt_dtype result_dtype,
                             tt_precision precision) {
  if (!TT_HLO_READY(b, "dot_general", x, y)) return &tt_hlo_poison;
  int64_t dims[2 * TT_HLO_MAX_RANK];
  int rank = x->dtype == y->dtype ? dot_shape(x, y, n, dims) : -1;
  if (rank < 0) return TT_HLO_REFUSE(b, "dot_general", "the dimension numbers or dtypes do not fit", x, y);
  // A sum of nothing. XLA's constant folding divides by its length, which ends the process.
  if (tt_value_count(x) == 0 || tt_value_count(y) == 0) return tt_hlo_splat(b, result_dtype, rank, dims, 0);
  tt_value *operands[] = {x, y};
  tt_value *result = tt_emit_result(b, "stablehlo.dot_general", result_dtype, rank, dims);
  tt_emit_values(b, " ", 2, operands);
  if (n->batch_count > 0) emit_dim_pairs(b, ", batching_dims = ", n->batch_count, n->lhs_batch, n->rhs_batch);
  emit_dim_pairs(b, ", contracting_dims = ", n->contract_count, n->lhs_contract, n->rhs_contract);
  tt_emit(b, ", precision = ");
  emit_precision(b, "", "", precision);
  return marked_product(tt_emit_signature(b, 2, operands, result));
}

// --- convolution ------------------------------------------------------------------------------------------------------------------

enum { MAX_SPATIAL = 8, LAYOUT_RANK = MAX_SPATIAL + 2 };

// One of the three layouts of a convolution: where its two letters (b and f, or o and i) and its spatial dimensions stand.
typedef struct layout {
  char letters[LAYOUT_RANK]; // as printed: 'b', 'f', 'o', 'i' or '0' + spatial number
  int first, second;         // position of b or o, of f or i
  int spatial[MAX_SPATIAL];
} layout;

// Reads "[b, f, 0, 1]" from *text. False when it is not a layout of the letters and `spatial` dimensions.
static bool parse_layout(const char **text, char first, char second, int spatial, layout *out) {
  const char *p = *text;
  int rank = 0, seen = 0;
  while (*p != 0 && *p != '[') ++p;
  for (; *p != 0 && *p != ']'; ++p) {
    if (*p == '[' || *p == ',' || *p == ' ') continue;
    if (rank == spatial + 2) return false;
    if (*p == first)
      out->first = rank, seen |= 1;
    else if (*p == second)
      out->second = rank, seen |= 2;
    else if (*p >= '0' && *p < '0' + spatial)
      out->spatial[*p - '0'] = rank, seen |= 4 << (*p - '0');
    else
      return false;
    out->letters[rank++] = *p;
  }
  if (*p != ']' || seen != (4 << spatial) - 1) return false;
  *text = p + 1;
  return true;
}

static void default_layout(char first, char second, int spatial, layout *out) {
  out->letters[0] = first;
  out->letters[1] = second;
  out->first = 0;
  out->second = 1;
  for (int i = 0; i < spatial; ++i) {
    out->letters[2 + i] = (char)('0' + i);
    out->spatial[i] = 2 + i;
  }
}

typedef struct layouts {
  layout input, filter, output;
} layouts;

static bool read_layouts(const tt_convolution *n, layouts *out) {
  if (n->spatial < 0 || n->spatial > MAX_SPATIAL) return false;
  if (n->dimension_numbers == NULL) {
    default_layout('b', 'f', n->spatial, &out->input);
    default_layout('o', 'i', n->spatial, &out->filter);
    default_layout('b', 'f', n->spatial, &out->output);
    return true;
  }
  const char *text = n->dimension_numbers;
  return parse_layout(&text, 'b', 'f', n->spatial, &out->input) &&
         parse_layout(&text, 'o', 'i', n->spatial, &out->filter) &&
         parse_layout(&text, 'b', 'f', n->spatial, &out->output);
}

static void emit_layout(tt_builder *b, const char *before, int spatial, const layout *l) {
  tt_emit(b, before);
  tt_emit(b, "[");
  for (int i = 0; i < spatial + 2; ++i) {
    if (i > 0) tt_emit(b, ", ");
    tt_string_append_n(&b->body, &l->letters[i], 1);
  }
  tt_emit(b, "]");
}

static int64_t at(const int64_t *values, int i, int64_t otherwise) { return values == NULL ? otherwise : values[i]; }

static void emit_conv_window(tt_builder *b, const tt_convolution *n) {
  int64_t stride[MAX_SPATIAL], lhs[MAX_SPATIAL], rhs[MAX_SPATIAL];
  for (int i = 0; i < n->spatial; ++i) {
    stride[i] = at(n->stride, i, 1);
    lhs[i] = at(n->lhs_dilation, i, 1);
    rhs[i] = at(n->rhs_dilation, i, 1);
  }
  tt_emit_i64s(b, ", window = {stride = ", n->spatial, stride);
  tt_emit(b, ", pad = [");
  for (int i = 0; i < n->spatial; ++i)
    tt_emit_i64s(b, i == 0 ? "" : ", ", 2, (int64_t[]){at(n->pad_low, i, 0), at(n->pad_high, i, 0)});
  tt_emit_i64s(b, "], lhs_dilate = ", n->spatial, lhs);
  tt_emit_i64s(b, ", rhs_dilate = ", n->spatial, rhs);
  tt_emit(b, "}");
}

// Sizes of the result; false when x and filter do not fit.
static bool conv_shape(const tt_value *x, const tt_value *filter, const tt_convolution *n, const layouts *l,
                       int64_t *dims) {
  if (x->dtype != filter->dtype || x->rank != n->spatial + 2 || filter->rank != n->spatial + 2) return false;
  if (n->feature_groups < 1 || n->batch_groups < 1 || (n->feature_groups > 1 && n->batch_groups > 1)) return false;
  int64_t batch = x->dims[l->input.first], features = x->dims[l->input.second];
  int64_t out = filter->dims[l->filter.first], in = filter->dims[l->filter.second];
  if (batch % n->batch_groups != 0 || features % n->feature_groups != 0 || in != features / n->feature_groups)
    return false;
  if (out % n->feature_groups != 0 || out % n->batch_groups != 0) return false;
  dims[l->output.first] = batch / n->batch_groups;
  dims[l->output.second] = out;
  for (int i = 0; i < n->spatial; ++i) {
    int64_t size = tt_hlo_window_count(x->dims[l->input.spatial[i]], filter->dims[l->filter.spatial[i]],
                                       at(n->stride, i, 1), at(n->pad_low, i, 0), at(n->pad_high, i, 0),
                                       at(n->lhs_dilation, i, 1), at(n->rhs_dilation, i, 1));
    if (size < 0) return false;
    dims[l->output.spatial[i]] = size;
  }
  return true;
}

tt_value *tt_hlo_convolution(tt_builder *b, tt_value *x, tt_value *filter, const tt_convolution *n,
                             tt_dtype result_dtype, tt_precision precision) {
  if (!TT_HLO_READY(b, "convolution", x, filter)) return &tt_hlo_poison;
  layouts l;
  int64_t dims[LAYOUT_RANK];
  if (!read_layouts(n, &l) || !conv_shape(x, filter, n, &l, dims))
    return TT_HLO_REFUSE(b, "convolution",
                         TT_HLO_TEXT(b,
                                     "%d spatial dimensions, %lld feature groups, %lld batch groups, layouts "
                                     "%s do not fit",
                                     n->spatial, (long long)n->feature_groups, (long long)n->batch_groups,
                                     n->dimension_numbers == NULL ? "NC, OI, NC" : n->dimension_numbers),
                         x, filter);
  tt_value *operands[] = {x, filter};
  tt_value *result = tt_emit_result(b, "stablehlo.convolution", result_dtype, n->spatial + 2, dims);
  tt_emit_values(b, "(", 2, operands);
  emit_layout(b, ") dim_numbers = ", n->spatial, &l.input);
  emit_layout(b, "x", n->spatial, &l.filter);
  emit_layout(b, "->", n->spatial, &l.output);
  emit_conv_window(b, n);
  tt_emit(b, " {feature_group_count = ");
  tt_emit_i64(b, n->feature_groups);
  tt_emit(b, " : i64, batch_group_count = ");
  tt_emit_i64(b, n->batch_groups);
  tt_emit(b, " : i64, precision_config = ");
  emit_precision(b, "#stablehlo<precision ", ">", precision);
  tt_emit(b, "}");
  return marked_product(tt_emit_signature(b, 2, operands, result));
}

// --- factorizations -----------------------------------------------------------------------------------------------------------------

static bool is_solvable(tt_dtype dtype) {
  return dtype == TT_F32 || dtype == TT_F64 || dtype == TT_C64 || dtype == TT_C128;
}

static bool is_square(const tt_value *x) { return x->rank >= 2 && x->dims[x->rank - 1] == x->dims[x->rank - 2]; }

tt_value *tt_hlo_cholesky(tt_builder *b, tt_value *x, bool lower) {
  if (!TT_HLO_READY(b, "cholesky", x)) return &tt_hlo_poison;
  if (!is_solvable(x->dtype) || !is_square(x))
    return TT_HLO_REFUSE(b, "cholesky", "wants square float32 or wider matrices", x);
  tt_value *result = tt_emit_result(b, "stablehlo.cholesky", x->dtype, x->rank, x->dims);
  tt_emit_values(b, " ", 1, &x);
  tt_emit_bool(b, ", lower = ", lower);
  tt_emit(b, " : ");
  tt_emit_type(&b->body, result);
  tt_emit(b, "\n");
  return result;
}

tt_value *tt_hlo_triangular_solve(tt_builder *b, tt_value *a, tt_value *x, bool left, bool lower, bool unit_diagonal,
                                  const char *transpose) {
  if (!TT_HLO_READY(b, "triangular_solve", a, x)) return &tt_hlo_poison;
  bool fits = is_solvable(a->dtype) && a->dtype == x->dtype && a->rank == x->rank && is_square(a) &&
              tt_hlo_same_dims(a->rank - 2, a->dims, x->dims) &&
              x->dims[x->rank - (left ? 2 : 1)] == a->dims[a->rank - 1];
  if (!fits) return TT_HLO_REFUSE(b, "triangular_solve", "operands do not fit", a, x);
  tt_value *operands[] = {a, x};
  tt_value *result = tt_emit_result(b, "\"stablehlo.triangular_solve\"", x->dtype, x->rank, x->dims);
  tt_emit_values(b, "(", 2, operands);
  tt_emit_bool(b, ") {left_side = ", left);
  tt_emit_bool(b, ", lower = ", lower);
  tt_emit_bool(b, ", unit_diagonal = ", unit_diagonal);
  tt_emit(b, ", transpose_a = #stablehlo<transpose ");
  tt_emit(b, transpose);
  tt_emit(b, ">}");
  return tt_emit_signature(b, 2, operands, result);
}

// --- Fourier transforms ---------------------------------------------------------------------------------------------------------------

// Result dtype and the size of its last dimension; TT_DTYPE_NONE when x does not fit.
static tt_dtype fft_type(const tt_value *x, const char *type, int64_t length, int64_t *out_last) {
  int64_t last = x->dims[x->rank - 1];
  bool complex = tt_dtype_is_complex(x->dtype);
  *out_last = length;
  if (strcmp(type, "FFT") == 0 || strcmp(type, "IFFT") == 0)
    return complex && last == length ? x->dtype : TT_DTYPE_NONE;
  if (strcmp(type, "IRFFT") == 0)
    return complex && (last == length / 2 + 1 || length == 0) ? tt_dtype_real(x->dtype) : TT_DTYPE_NONE;
  if (strcmp(type, "RFFT") != 0 || (x->dtype != TT_F32 && x->dtype != TT_F64) || last != length) return TT_DTYPE_NONE;
  *out_last = length == 0 ? 0 : length / 2 + 1;
  return tt_dtype_complex(x->dtype);
}

tt_value *tt_hlo_fft(tt_builder *b, tt_value *x, const char *type, int count, const int64_t *lengths) {
  if (!TT_HLO_READY(b, "fft", x)) return &tt_hlo_poison;
  if (count < 1 || count > 3 || count > x->rank)
    return TT_HLO_REFUSE(b, "fft", TT_HLO_TEXT(b, "%d dimensions; 1 to 3 are possible", count), x);
  int64_t dims[TT_HLO_MAX_RANK];
  memcpy(dims, x->dims, (size_t)x->rank * sizeof *dims);
  tt_dtype dtype = fft_type(x, type, lengths[count - 1], &dims[x->rank - 1]);
  bool fits = dtype != TT_DTYPE_NONE;
  for (int i = 0; i < count - 1; ++i) fits &= x->dims[x->rank - count + i] == lengths[i];
  if (!fits)
    return TT_HLO_REFUSE(b, "fft", TT_HLO_TEXT(b, "%s of lengths %s", type, tt_shape_text(&b->arena, count, lengths)),
                         x);
  tt_value *result = tt_emit_result(b, "stablehlo.fft", dtype, x->rank, dims);
  tt_emit_values(b, " ", 1, &x);
  tt_emit(b, ", type = ");
  tt_emit(b, type);
  tt_emit_i64s(b, ", length = ", count, lengths);
  return tt_emit_signature(b, 1, &x, result);
}

// --- random bits ------------------------------------------------------------------------------------------------------------------------

// Prints "%7:2 = ..." with the state as the first result, which is dropped: callers keep the counter themselves.
tt_value *tt_hlo_rng_bits(tt_builder *b, tt_value *state, tt_dtype dtype, int rank, const int64_t *dims) {
  if (!TT_HLO_READY(b, "rng_bits", state)) return &tt_hlo_poison;
  if (state->dtype != TT_U64 || state->rank != 1 || state->dims[0] != 2 || (dtype != TT_U32 && dtype != TT_U64))
    return TT_HLO_REFUSE(b, "rng_bits", "wants a state UInt64[2] and gives UInt32 or UInt64", state);
  int64_t id = tt_emit_results(b, "stablehlo.rng_bit_generator", 2);
  tt_value *results[] = {tt_hlo_value(b, TT_U64, 1, state->dims, id, 0), tt_hlo_value(b, dtype, rank, dims, id, 1)};
  tt_emit_values(b, " ", 1, &state);
  tt_emit(b, ", algorithm = THREE_FRY");
  tt_emit_signature_n(b, 1, &state, 2, results);
  return results[1];
}
