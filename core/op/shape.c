// shape.c - ops that rearrange or join tensors: cat, stack, roll, flip, rot90, repeat, tril, triu, shuffles, triangle indices.
#include <math.h>

#include "op/shape.h"

// --- joining ----------------------------------------------------------------------------------------------------------------

// torch skips tensors of shape [0] whatever the rank of the others (a rule from when there were no other empty tensors).
static bool is_skipped(const tt_tensor *t) { return t->rank == 1 && t->sizes[0] == 0; }

// Room for the parts of a list argument; NULL when the call fails.
static tt_value **new_parts(tt_lowering *l, int count) {
  tt_value **parts = tt_arena_allocate(tt_builder_arena(l->b), (size_t)count + 1, sizeof *parts);
  if (!parts) tt_fail(l, TT_OUT_OF_MEMORY, "out of host memory");
  return parts;
}

void tt_lower_cat(tt_lowering *l) {
  tt_builder *b = l->b;
  int count = 0, items = tt_list_count(l, 0);
  tt_value **parts = new_parts(l, items);
  if (!parts) return;
  tt_dtype dtype = tt_output_dtype(l, 0, tt_promote_list(l, 0));
  for (int i = 0; i < items; ++i) {
    const tt_tensor *t = tt_list_tensor(l, 0, i);
    if (t && !is_skipped(t)) parts[count++] = tt_list_operand_as(l, 0, i, dtype);
  }
  tt_value *nothing = tt_hlo_splat(b, dtype, 1, (int64_t[]){0}, 0);
  int dim = tt_wrap_dim(l, tt_int(l, 1), count > 0 ? parts[0]->rank : 1);
  tt_set_result(l, 0, count > 0 ? tt_hlo_concatenate(b, count, parts, dim) : nothing);
}

static bool check_stack(tt_lowering *l) {
  const tt_tensor *first = tt_list_tensor(l, 0, 0);
  if (!first) {
    tt_fail(l, TT_INVALID_ARGUMENT, "stack expects a non-empty TensorList");
    return false;
  }
  for (int i = 1; i < tt_list_count(l, 0); ++i) {
    const tt_tensor *t = tt_list_tensor(l, 0, i);
    bool same = t && t->rank == first->rank;
    for (int d = 0; same && d < t->rank; ++d) same = t->sizes[d] == first->sizes[d];
    if (same) continue;
    tt_arena *arena = tt_builder_arena(l->b);
    tt_fail(l, TT_INVALID_ARGUMENT,
            "stack expects each tensor to be equal size, but got %s at entry 0 and %s at entry %d",
            tt_shape_text(arena, first->rank, first->sizes), t ? tt_shape_text(arena, t->rank, t->sizes) : "[]", i);
    return false;
  }
  return true;
}

void tt_lower_stack(tt_lowering *l) {
  tt_builder *b = l->b;
  if (!check_stack(l)) return;
  int items = tt_list_count(l, 0), dim = tt_wrap_dim(l, tt_int(l, 1), tt_list_tensor(l, 0, 0)->rank + 1);
  tt_dtype dtype = tt_output_dtype(l, 0, tt_promote_list(l, 0));
  tt_value **parts = new_parts(l, items);
  if (!parts || tt_failed(l)) return;
  for (int i = 0; i < items; ++i) parts[i] = tt_hlo_unsqueeze_dim(b, tt_list_operand_as(l, 0, i, dtype), dim);
  tt_set_result(l, 0, tt_hlo_concatenate(b, items, parts, dim));
}

// Matrices along the diagonal of a matrix of zeros; vectors and numbers count as matrices of one row.
void tt_lower_block_diag(tt_lowering *l) {
  tt_builder *b = l->b;
  int items = tt_list_count(l, 0);
  tt_dtype dtype = items > 0 ? tt_promote_list(l, 0) : l->default_dtype;
  tt_value **rows = new_parts(l, items);
  int64_t width = 0, left = 0;
  for (int i = 0; i < items; ++i) {
    const tt_tensor *t = tt_list_tensor(l, 0, i);
    if (t && t->rank > 2)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "torch.block_diag: Input tensors must have 2 or fewer dimensions. Input %d has %d dimensions", i,
              t->rank);
    width += !t || t->rank == 0 ? 1 : t->sizes[t->rank - 1];
  }
  if (!rows || tt_failed(l)) return;
  for (int i = 0; i < items; ++i) {
    tt_value *x = tt_list_operand_as(l, 0, i, dtype);
    while (x->rank < 2 && !tt_failed(l)) x = tt_hlo_unsqueeze_dim(b, x, 0);
    int64_t own = x->dims[1];
    rows[i] = tt_pad_dim_zero(b, x, 1, left, width - left - own, 0);
    left += own;
  }
  tt_value *nothing = tt_hlo_splat(b, dtype, 2, (int64_t[]){1, 0}, 0);
  tt_set_result(l, 0, items > 0 ? tt_hlo_concatenate(b, items, rows, 0) : nothing);
}

// --- turning ------------------------------------------------------------------------------------------------------------------

enum { ROLL_ELEMENTS = 1 << 18 }; // up to here two copies stay in the caches

// Both parts are moved into a shape of x's size, which XLA fuses with the choice between them.
static tt_value *roll_by_choice(tt_builder *b, tt_value *x, int dim, int64_t shift) {
  int64_t size = x->dims[dim];
  tt_value *tail = tt_pad_dim_zero(b, x, dim, shift - size, size - shift, 0),
           *head = tt_pad_dim_zero(b, x, dim, shift, -shift, 0);
  tt_value *position = tt_hlo_iota(b, tt_index_dtype(size), x->rank, x->dims, dim);
  tt_value *is_tail = tt_hlo_compare(b, TT_LT, position, tt_hlo_constant_like(b, position, (double)shift));
  return tt_hlo_select(b, is_tail, tail, head);
}

static tt_value *roll_dim(tt_builder *b, tt_value *x, int dim, int64_t shift) {
  int64_t size = x->dims[dim];
  if (size == 0) return x;
  shift = (shift % size + size) % size;
  if (shift == 0) return x;
  bool rows_move = dim == x->rank - 1 && tt_value_count(x) > ROLL_ELEMENTS && x->rank > 1;
  if (rows_move && tt_builder_target(b)->concat_copies) return roll_by_choice(b, x, dim, shift);
  tt_value *tail = tt_hlo_slice_dim(b, x, dim, size - shift, size, 1),
           *head = tt_hlo_slice_dim(b, x, dim, 0, size - shift, 1);
  return tt_hlo_concatenate(b, 2, (tt_value *[]){tail, head}, dim);
}

void tt_lower_roll(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  int shift_count, dim_count;
  const int64_t *shifts = tt_ints(l, 1, &shift_count), *dims = tt_ints(l, 2, &dim_count);
  bool flat = dim_count == 0 && shift_count == 1;
  if (shift_count == 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "`shifts` required");
  else if (!flat && shift_count != dim_count)
    tt_fail(l, TT_INVALID_ARGUMENT, "shifts and dimensions must align. shifts: %d, dims:%d", shift_count, dim_count);
  else if (!flat && x->rank == 0)
    tt_fail(l, TT_INDEX, "Dimension specified as %lld but tensor has no dimensions", (long long)dims[0]);
  if (tt_failed(l)) return;
  tt_value *rolled = flat ? roll_dim(l->b, tt_flat(l->b, x), 0, shifts[0]) : x;
  for (int i = 0; i < dim_count; ++i) rolled = roll_dim(l->b, rolled, tt_wrap_dim(l, dims[i], x->rank), shifts[i]);
  tt_set_result(l, 0, tt_hlo_reshape(l->b, rolled, x->rank, x->dims));
}

void tt_lower_flip(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  int given, count = 0;
  tt_ints(l, 1, &given);
  const int *dims = given > 0 ? tt_dims(l, 1, x->rank, &count) : NULL;
  tt_set_result(l, 0, count > 0 ? tt_hlo_reverse(l->b, x, count, dims) : x);
  tt_set_order_like(l, 0, 0);
}

static bool check_rot90(tt_lowering *l, const tt_value *x, int count, const int64_t *dims) {
  if (count != 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "expected total rotation dims == 2, but got dims = %d", count);
  else if (x->rank < 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "expected total dims >= 2, but got total dims = %d", x->rank);
  else if (dims[0] == dims[1] || llabs(dims[0] - dims[1]) == x->rank)
    tt_fail(l, TT_INVALID_ARGUMENT, "expected rotation dims to be different, but got dim0 = %lld and dim1 = %lld",
            (long long)dims[0], (long long)dims[1]);
  return !tt_failed(l);
}

void tt_lower_rot90(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  int count;
  const int64_t *given = tt_ints(l, 2, &count);
  if (!check_rot90(l, x, count, given)) return;
  int dims[] = {tt_wrap_dim(l, given[0], x->rank), tt_wrap_dim(l, given[1], x->rank)};
  int64_t quarters = (tt_int(l, 1) % 4 + 4) % 4;
  int order[TT_INDEX_MAX_DIMS];
  for (int i = 0; i < x->rank; ++i) order[i] = i == dims[0] ? dims[1] : i == dims[1] ? dims[0] : i;
  if (quarters == 1) x = tt_hlo_transpose(b, tt_hlo_reverse(b, x, 1, &dims[1]), order);
  if (quarters == 2) x = tt_hlo_reverse(b, x, 2, dims);
  if (quarters == 3) x = tt_hlo_transpose(b, tt_hlo_reverse(b, x, 1, &dims[0]), order);
  tt_set_result(l, 0, x);
  // torch flips, and transposes that as a view; it copies row by row where there is nothing to turn.
  int *in_memory = quarters > 0 ? tt_order_of(l, 0) : NULL;
  for (int i = 0; in_memory && quarters != 2 && i < x->rank; ++i) in_memory[i] = order[in_memory[i]];
  tt_set_order(l, 0, in_memory);
}

// --- repeating ------------------------------------------------------------------------------------------------------------------

void tt_lower_repeat(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  int count;
  const int64_t *repeats = tt_ints(l, 1, &count);
  int lead = count - x->rank;
  if (lead < 0 || count > TT_INDEX_MAX_DIMS / 2) {
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
    return;
  }
  // [a, b] becomes [repeats, a, repeats, b], where a repeat of 1 takes no dim.
  int64_t spread[TT_INDEX_MAX_DIMS], result[TT_INDEX_MAX_DIMS];
  int map[TT_INDEX_MAX_DIMS], rank = 0;
  for (int i = 0; i < count; ++i) {
    int64_t size = i < lead ? 1 : x->dims[i - lead];
    result[i] = size * repeats[i];
    if (repeats[i] != 1) spread[rank++] = repeats[i];
    if (i >= lead) {
      map[i - lead] = rank;
      spread[rank++] = size;
    }
  }
  for (int i = 0; i < count; ++i) {
    if (result[i] >= 0 && repeats[i] >= 0) continue;
    tt_fail(l, TT_INVALID_ARGUMENT, "Trying to create tensor with negative dimension %lld: %s", (long long)result[i],
            tt_shape_text(tt_builder_arena(b), count, result));
    return;
  }
  tt_set_result(l, 0, tt_hlo_reshape(b, tt_hlo_broadcast_in_dim(b, x, rank, spread, map), count, result));
}

// --- triangles --------------------------------------------------------------------------------------------------------------------

static int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

static void lower_triangle(tt_lowering *l, bool upper) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  int64_t sizes[] = {x->dims[x->rank - 2], x->dims[x->rank - 1]}; // torch's wrapper has checked that there are two
  if (tt_value_count(x) > 0) {
    tt_dtype dtype = tt_index_dtype(sizes[0] + sizes[1]);
    tt_value *row = tt_hlo_iota(b, dtype, 2, sizes, 0), *column = tt_hlo_iota(b, dtype, 2, sizes, 1);
    tt_value *diagonal = tt_hlo_constant_like(b, row, (double)clamp(tt_int(l, 1), -sizes[0], sizes[1]));
    tt_value *kept = tt_hlo_compare(b, upper ? TT_GE : TT_LE, column, tt_hlo_add(b, row, diagonal));
    x = tt_hlo_select(b, tt_hlo_broadcast_like(b, kept, x), x, tt_hlo_constant_like(b, x, 0));
  }
  tt_set_result(l, 0, x);
}

void tt_lower_tril(tt_lowering *l) { lower_triangle(l, false); }
void tt_lower_triu(tt_lowering *l) { lower_triangle(l, true); }

// The row of element k of a triangle whose rows have first, first + 1, first + 2 ... elements, and where that row begins. The
// root is exact to less than one row, so one step either way makes it exact.
static tt_value *triangle_row(tt_builder *b, tt_value *k, int64_t first, tt_value **out_begin) {
  tt_dtype real = k->dtype == TT_S32 ? TT_F32 : TT_F64;
  double m = 2 * (double)first - 1;
  tt_value *eight = tt_hlo_multiply(b, tt_hlo_convert(b, k, real), tt_hlo_splat(b, real, k->rank, k->dims, 8));
  tt_value *root = tt_hlo_sqrt(b, tt_hlo_add(b, eight, tt_hlo_constant_like(b, eight, m * m)));
  tt_value *guess = tt_hlo_multiply(b, tt_hlo_subtract(b, root, tt_hlo_constant_like(b, root, m)),
                                    tt_hlo_constant_like(b, root, 0.5));
  tt_value *row = tt_hlo_convert(b, guess, k->dtype), *begin[2];
  tt_value *one = tt_hlo_constant_like(b, row, 1), *two = tt_hlo_constant_like(b, row, 2);
  for (int i = 0; i < 2; ++i) { // where this row and the next one begin: row * (row + 2 * first - 1) / 2
    tt_value *at = i == 0 ? row : tt_hlo_add(b, row, one);
    tt_value *twice = tt_hlo_multiply(b, at, tt_hlo_add(b, at, tt_hlo_constant_like(b, at, m)));
    begin[i] = tt_hlo_divide(b, twice, two);
  }
  tt_value *too_far = tt_hlo_compare(b, TT_GT, begin[0], k), *too_near = tt_hlo_compare(b, TT_LE, begin[1], k);
  row =
      tt_hlo_select(b, too_far, tt_hlo_subtract(b, row, one), tt_hlo_select(b, too_near, tt_hlo_add(b, row, one), row));
  tt_value *twice = tt_hlo_multiply(b, row, tt_hlo_add(b, row, tt_hlo_constant_like(b, row, m)));
  *out_begin = tt_hlo_divide(b, twice, two);
  return row;
}

typedef struct triangle { // the elements (r, c) of a matrix with c <= r + offset, row by row
  int64_t skipped;        // rows without elements
  int64_t first, growing; // size of the first row, and how many rows grow by one until they are full
  int64_t grown;          // elements in the growing rows
  int64_t count;          // elements in all
} triangle;

static triangle triangle_of(int64_t rows, int64_t columns, int64_t offset) {
  triangle t = {.skipped = clamp(-offset, 0, rows)};
  int64_t left = rows - t.skipped;
  t.first = clamp(t.skipped + offset + 1, 0, columns);
  if (left == 0 || t.first == 0) return t;
  t.growing = clamp(columns - t.first + 1, 0, left);
  t.grown = t.growing * t.first + t.growing * (t.growing - 1) / 2;
  t.count = t.grown + (left - t.growing) * columns;
  return t;
}

int64_t tt_triangle_count(int64_t rows, int64_t columns, int64_t offset) {
  return triangle_of(rows, columns, offset).count;
}

void tt_triangle_positions(tt_builder *b, int64_t rows, int64_t columns, int64_t offset, bool upper, tt_value **out_row,
                           tt_value **out_column) {
  // Turned by half a turn, an upper triangle is a lower one, its elements in reverse.
  triangle t = triangle_of(rows, columns, upper ? columns - rows - offset : offset);
  tt_dtype dtype = t.count < INT32_MAX / 4 ? TT_S32 : TT_S64;
  tt_value *k = tt_hlo_iota(b, dtype, 1, &t.count, 0), *begin;
  if (upper) k = tt_hlo_subtract(b, tt_hlo_constant_like(b, k, (double)t.count - 1), k);
  tt_value *row = triangle_row(b, k, t.first, &begin), *column = tt_hlo_subtract(b, k, begin);
  if (t.count > t.grown) {
    tt_value *rest = tt_hlo_subtract(b, k, tt_hlo_constant_like(b, k, (double)t.grown));
    tt_value *full = tt_hlo_compare(b, TT_GE, rest, tt_hlo_constant_like(b, k, 0));
    tt_value *width = tt_hlo_constant_like(b, k, (double)columns);
    tt_value *below = tt_hlo_add(b, tt_hlo_divide(b, rest, width), tt_hlo_constant_like(b, k, (double)t.growing));
    row = tt_hlo_select(b, full, below, row);
    column = tt_hlo_select(b, full, tt_hlo_remainder(b, rest, width), column);
  }
  row = tt_hlo_add(b, row, tt_hlo_constant_like(b, k, (double)t.skipped));
  *out_row = upper ? tt_hlo_subtract(b, tt_hlo_constant_like(b, k, (double)rows - 1), row) : row;
  *out_column = upper ? tt_hlo_subtract(b, tt_hlo_constant_like(b, k, (double)columns - 1), column) : column;
}

static void lower_triangle_indices(tt_lowering *l, bool upper) {
  tt_builder *b = l->b;
  int64_t rows = tt_int(l, 0), columns = tt_int(l, 1), offset = tt_int(l, 2);
  tt_dtype dtype = tt_output_dtype(l, 0, tt_dtype_arg(l, 3, TT_S64));
  if (rows < 0) tt_fail(l, TT_INVALID_ARGUMENT, "row must be non-negative, got%lld", (long long)rows);
  if (columns < 0) tt_fail(l, TT_INVALID_ARGUMENT, "col must be non-negative, got%lld", (long long)columns);
  if (dtype != TT_S64 && dtype != TT_S32)
    tt_fail(l, TT_NOT_IMPLEMENTED, "\"%s_indices\" not implemented for '%s'", upper ? "triu" : "tril",
            tt_dtype_text(dtype));
  if (tt_failed(l)) return;
  offset = clamp(offset, -rows, columns);
  tt_value *both[2], *none = tt_hlo_splat(b, dtype, 2, (int64_t[]){2, 0}, 0);
  bool empty = tt_triangle_count(rows, columns, upper ? columns - rows - offset : offset) == 0;
  if (!empty) {
    tt_triangle_positions(b, rows, columns, offset, upper, &both[0], &both[1]);
    for (int i = 0; i < 2; ++i) both[i] = tt_hlo_unsqueeze_dim(b, tt_hlo_convert(b, both[i], dtype), 0);
  }
  tt_set_result(l, 0, empty ? none : tt_hlo_concatenate(b, 2, both, 0));
}

void tt_lower_tril_indices(tt_lowering *l) { lower_triangle_indices(l, false); }
void tt_lower_triu_indices(tt_lowering *l) { lower_triangle_indices(l, true); }

// --- shuffles ---------------------------------------------------------------------------------------------------------------------

// Splits the last three dims [channels, height, width] of x into `five`, permutes them, and joins them to `three`.
static tt_value *shuffle(tt_builder *b, tt_value *x, const int64_t *five, const int *order, const int64_t *three) {
  int lead = x->rank - 3, permutation[TT_INDEX_MAX_DIMS];
  int64_t dims[TT_INDEX_MAX_DIMS];
  for (int i = 0; i < lead; ++i) {
    dims[i] = x->dims[i];
    permutation[i] = i;
  }
  for (int i = 0; i < 5; ++i) {
    dims[lead + i] = five[i];
    permutation[lead + i] = lead + order[i];
  }
  tt_value *moved = tt_hlo_transpose(b, tt_hlo_reshape(b, x, lead + 5, dims), permutation);
  for (int i = 0; i < 3; ++i) dims[lead + i] = three[i];
  return tt_hlo_reshape(b, moved, lead + 3, dims);
}

static bool check_shuffle(tt_lowering *l, const char *op, const char *factor_name, int rank, int64_t factor) {
  if (rank < 3)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "%s expects input to have at least 3 dimensions, but got input with %d dimension(s)", op, rank);
  else if (factor <= 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "%s expects a positive %s, but got %lld", op, factor_name, (long long)factor);
  return !tt_failed(l);
}

void tt_lower_pixel_shuffle(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  int64_t r = tt_int(l, 1), square = r * r;
  if (!check_shuffle(l, "pixel_shuffle", "upscale_factor", x->rank, r)) return;
  const int64_t *d = x->dims + x->rank - 3;
  if (d[0] % square != 0) {
    tt_fail(l, TT_INVALID_ARGUMENT,
            "pixel_shuffle expects its input's 'channel' dimension to be divisible by the square of "
            "upscale_factor, but input.size(-3)=%lld is not divisible by %lld",
            (long long)d[0], (long long)square);
    return;
  }
  int64_t channels = d[0] / square, three[] = {channels, d[1] * r, d[2] * r};
  tt_set_result(l, 0, shuffle(l->b, x, (int64_t[]){channels, r, r, d[1], d[2]}, (int[]){0, 3, 1, 4, 2}, three));
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
}

void tt_lower_pixel_unshuffle(tt_lowering *l) {
  tt_value *x = tt_operand(l, 0);
  int64_t r = tt_int(l, 1);
  if (!check_shuffle(l, "pixel_unshuffle", "downscale_factor", x->rank, r)) return;
  const int64_t *d = x->dims + x->rank - 3;
  for (int i = 1; i < 3 && !tt_failed(l); ++i)
    if (d[i] % r != 0)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "pixel_unshuffle expects %s to be divisible by downscale_factor, but input.size(%d)=%lld is "
              "not divisible by %lld",
              i == 1 ? "height" : "width", i - 3, (long long)d[i], (long long)r);
  if (tt_failed(l)) return;
  int64_t three[] = {d[0] * r * r, d[1] / r, d[2] / r};
  tt_set_result(l, 0, shuffle(l->b, x, (int64_t[]){d[0], three[1], r, three[2], r}, (int[]){0, 2, 4, 1, 3}, three));
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
}

void tt_lower_channel_shuffle(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *x = tt_operand(l, 0);
  int64_t groups = tt_int(l, 1);
  if (x->rank <= 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "channel_shuffle expects input with > 2 dims, but got input with sizes %s",
            tt_shape_text(tt_builder_arena(b), x->rank, x->dims));
  else if (groups <= 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "Number of groups to divide channels in must be positive. Value of groups:%lld",
            (long long)groups);
  else if (x->dims[1] % groups != 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Number of channels must be divisible by groups. Got %lld channels and %lld groups.", (long long)x->dims[1],
            (long long)groups);
  if (tt_failed(l)) return;
  int64_t rest = 1;
  for (int i = 2; i < x->rank; ++i) rest *= x->dims[i];
  tt_value *split = tt_hlo_reshape(b, x, 4, (int64_t[]){x->dims[0], groups, x->dims[1] / groups, rest});
  tt_set_result(l, 0, tt_hlo_reshape(b, tt_hlo_transpose(b, split, (int[]){0, 2, 1, 3}), x->rank, x->dims));
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
}
