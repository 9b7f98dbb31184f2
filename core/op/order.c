// order.c - see order.h.
//
// The key of a float is its bits read as an integer, with the magnitude turned around for negative ones. The position is
// stored doubled; for floats, its lowest bit tells -0.0 from 0.0, which have the same key.
#include "op/order.h"

// --- keys ------------------------------------------------------------------------------------------------------------

static bool fits_32_bits(tt_dtype dtype) { return tt_dtype_size(dtype) <= 4; }
static tt_dtype key_dtype(tt_dtype dtype) { return fits_32_bits(dtype) ? TT_S32 : TT_S64; }
static int sign_shift(tt_dtype key) { return key == TT_S32 ? 31 : 63; }

static tt_value *like(tt_builder *b, const tt_value *x, int64_t value) {
  return tt_hlo_broadcast_like(b, tt_hlo_constant_i64(b, x->dtype, value), x);
}

static tt_value *bits_as(tt_builder *b, tt_value *x, tt_dtype dtype) {
  return tt_hlo_bitcast_convert(b, x, dtype, x->rank, x->dims);
}

static int64_t lowest(tt_dtype key) { return key == TT_S32 ? INT32_MIN : INT64_MIN; }

// Flips all bits but the sign of negative numbers: turns float bits into an order, and back.
static tt_value *flip_negative(tt_builder *b, tt_value *bits) {
  tt_value *sign = tt_hlo_shift_right_arithmetic(b, bits, like(b, bits, sign_shift(bits->dtype)));
  return tt_hlo_xor(b, bits, tt_hlo_and(b, sign, like(b, bits, ~lowest(bits->dtype))));
}

// The key of x, S32 or S64, and for floats *out_flag: 1 (S32) where x is -0.0.
static tt_value *key_of(tt_builder *b, tt_value *x, tt_value **out_flag) {
  tt_dtype key = key_dtype(x->dtype);
  *out_flag = NULL;
  if (x->dtype == TT_U32 || x->dtype == TT_U64) {
    tt_value *bits = bits_as(b, x, key);
    return tt_hlo_xor(b, bits, like(b, bits, lowest(key)));
  }
  if (!tt_dtype_is_float(x->dtype)) return tt_hlo_convert(b, x, key);
  x = tt_hlo_convert(b, x, tt_compute_dtype(x->dtype));
  x = tt_hlo_select(b, tt_hlo_is_nan(b, x), tt_hlo_constant_like(b, x, __builtin_nan("")),
                    x); // NaNs are one, and positive
  tt_value *order = flip_negative(b, bits_as(b, x, key));
  tt_value *negative_zero = tt_hlo_compare(b, TT_EQ, order, like(b, order, -1));
  *out_flag = tt_hlo_convert(b, negative_zero, TT_S32);
  return tt_hlo_select(b, negative_zero, like(b, order, 0), order);
}

// The element of a key and its flag (NULL for none).
static tt_value *element_of(tt_builder *b, tt_value *key, tt_value *flag, tt_dtype dtype) {
  if (dtype == TT_U32 || dtype == TT_U64)
    return bits_as(b, tt_hlo_xor(b, key, like(b, key, lowest(key->dtype))), dtype);
  if (!tt_dtype_is_float(dtype)) return tt_hlo_convert(b, key, dtype);
  key = tt_hlo_select(b, tt_hlo_convert(b, flag, TT_BOOL), like(b, key, -1), key);
  return tt_hlo_convert(b, bits_as(b, flip_negative(b, key), dtype == TT_F64 ? TT_F64 : TT_F32), dtype);
}

// --- sorting ---------------------------------------------------------------------------------------------------------

static void less(tt_builder *b, tt_value *const *arguments, tt_value **results, void *user) {
  (void)user;
  results[0] = tt_hlo_compare(b, TT_LT, arguments[0], arguments[1]); // strict: XLA runs out of bounds with <=
}

// Doubled positions along dim with the flag in the lowest bit.
static tt_value *marked_position(tt_builder *b, const tt_value *key, int dim, tt_value *flag) {
  tt_dtype dtype = tt_position_dtype(2 * key->dims[dim]);
  tt_value *position = tt_hlo_iota(b, dtype, key->rank, key->dims, dim);
  position = tt_hlo_add(b, position, position);
  return flag ? tt_hlo_or(b, position, tt_hlo_convert(b, flag, dtype)) : position;
}

tt_ordered tt_order(tt_builder *b, tt_value *x, int dim, bool descending) {
  tt_ordered o = {.dtype = x->dtype, .descending = descending};
  tt_value *flag, *key = key_of(b, x, &flag);
  if (descending) key = tt_hlo_not(b, key);
  tt_value *position = marked_position(b, key, dim, flag);
  if (key->dtype == TT_S32 && position->dtype == TT_S32) {
    tt_value *high = tt_hlo_convert(b, key, TT_S64), *low = tt_hlo_convert(b, position, TT_S64);
    o.keys = tt_hlo_or(b, tt_hlo_shift_left(b, high, like(b, high, 32)), low);
    tt_hlo_sort(b, 1, &o.keys, dim, false, less, NULL, &o.keys);
    return o;
  }
  tt_value *pair[] = {tt_hlo_convert(b, key, TT_S64), position};
  tt_hlo_sort(b, 2, pair, dim, true, less, NULL, pair);
  o.keys = pair[0];
  o.position = pair[1];
  return o;
}

// --- picking ---------------------------------------------------------------------------------------------------------

tt_ordered tt_ordered_slice(tt_builder *b, const tt_ordered *o, int dim, int64_t start, int64_t limit) {
  tt_ordered part = *o;
  part.keys = tt_hlo_slice_dim(b, o->keys, dim, start, limit, 1);
  if (o->position) part.position = tt_hlo_slice_dim(b, o->position, dim, start, limit, 1);
  return part;
}

// The one element along the axis where `here` holds.
static tt_value *pick(tt_builder *b, tt_value *x, tt_value *here, tt_axes axis) {
  return tt_sum(b, tt_hlo_select(b, here, x, like(b, x, 0)), axis);
}

tt_ordered tt_ordered_pick(tt_builder *b, const tt_ordered *o, int dim, tt_value *place) {
  tt_ordered picked = *o;
  tt_axes axis = tt_axes_range(dim, dim + 1);
  tt_value *places = tt_spread(b, place, o->keys, axis);
  tt_value *here = tt_hlo_compare(b, TT_EQ, tt_hlo_iota(b, place->dtype, places->rank, places->dims, dim), places);
  picked.keys = pick(b, o->keys, here, axis);
  if (o->position) picked.position = pick(b, o->position, here, axis);
  return picked;
}

// --- elements --------------------------------------------------------------------------------------------------------

tt_value *tt_ordered_keys(tt_builder *b, const tt_ordered *o) {
  return o->position ? o->keys : tt_hlo_shift_right_arithmetic(b, o->keys, like(b, o->keys, 32));
}

static tt_value *marked(tt_builder *b, const tt_ordered *o) {
  return o->position ? o->position : tt_hlo_and(b, o->keys, like(b, o->keys, UINT32_MAX));
}

tt_value *tt_ordered_values(tt_builder *b, const tt_ordered *o) {
  tt_value *key = tt_hlo_convert(b, tt_ordered_keys(b, o), key_dtype(o->dtype)), *position = marked(b, o);
  if (o->descending) key = tt_hlo_not(b, key);
  return element_of(b, key, tt_hlo_and(b, position, like(b, position, 1)), o->dtype);
}

tt_value *tt_ordered_positions(tt_builder *b, const tt_ordered *o) {
  tt_value *position = marked(b, o);
  return tt_hlo_convert(b, tt_hlo_shift_right_logical(b, position, like(b, position, 1)), TT_S64);
}
