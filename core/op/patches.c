// patches.c - sliding windows cut out and added back: im2col, col2im, unfold_backward.
//
// Both directions work one dim at a time. A dim of size n becomes two, [k, out], where element (i, o) is element
// i * dilation + o * stride of it: as k slices put together, or as one gather where k is large. The way back is the sum of k
// padded slices, or one scatter.
#include "op/shape.h"

enum { MOST_PIECES = 16 }; // beyond it a gather or scatter compiles and runs faster than so many slices

typedef struct sliding {
  int64_t kernel, dilation, stride, out;
} sliding;

static int64_t reach(const sliding *s) { return (s->out - 1) * s->stride + 1; }

// Positions [kernel, out] in the dim.
static tt_value *positions(tt_builder *b, const sliding *s) {
  int64_t dims[] = {s->kernel, s->out};
  tt_dtype dtype = tt_index_dtype((s->kernel - 1) * s->dilation + reach(s));
  tt_value *i = tt_hlo_iota(b, dtype, 2, dims, 0), *o = tt_hlo_iota(b, dtype, 2, dims, 1);
  return tt_hlo_add(b, tt_hlo_multiply(b, i, tt_hlo_constant_like(b, i, (double)s->dilation)),
                    tt_hlo_multiply(b, o, tt_hlo_constant_like(b, o, (double)s->stride)));
}

// Replaces `dim` by [kernel, out].
static tt_value *cut(tt_builder *b, tt_value *x, int dim, const sliding *s) {
  if (s->kernel > MOST_PIECES) return tt_take_rows(b, x, dim, positions(b, s));
  tt_value *pieces[MOST_PIECES];
  for (int64_t i = 0; i < s->kernel; ++i) {
    int64_t start = i * s->dilation;
    pieces[i] = tt_hlo_unsqueeze_dim(b, tt_hlo_slice_dim(b, x, dim, start, start + reach(s), s->stride), dim);
  }
  return tt_hlo_concatenate(b, (int)s->kernel, pieces, dim);
}

// Without dilation `stride` neighbouring kernel elements tile the dim: [kernel, out] at `dim` becomes
// [kernel / stride, stride * out], the kernel filled up with zeros. *s then says how the larger elements slide.
static tt_value *tile(tt_builder *b, tt_value *x, int dim, sliding *s) {
  int64_t groups = (s->kernel + s->stride - 1) / s->stride;
  x = tt_pad_dim_zero(b, x, dim, 0, groups * s->stride - s->kernel, 0);
  int64_t dims[TT_INDEX_MAX_DIMS];
  int order[TT_INDEX_MAX_DIMS];
  for (int i = 0; i <= x->rank; ++i) { // [groups, stride, out]
    dims[i] = i < dim ? x->dims[i] : i == dim ? groups : i == dim + 1 ? s->stride : x->dims[i - 1];
    order[i] = i == dim + 1 ? dim + 2 : i == dim + 2 ? dim + 1 : i;
  }
  int rank = x->rank;
  x = tt_hlo_transpose(b, tt_hlo_reshape(b, x, rank + 1, dims), order);
  dims[dim + 1] = s->out * s->stride;
  for (int i = dim + 2; i < rank; ++i) dims[i] = dims[i + 1];
  *s = (sliding){.kernel = groups, .dilation = s->stride, .stride = 1, .out = s->out * s->stride};
  return tt_hlo_reshape(b, x, rank, dims);
}

// The reverse of cut: [kernel, out] at `dim` becomes `size` elements, those that meet added up.
static tt_value *add_back(tt_builder *b, tt_value *x, int dim, int64_t size, sliding s) {
  int64_t pieces = s.dilation == 1 ? (s.kernel + s.stride - 1) / s.stride : s.kernel;
  int64_t dims[TT_INDEX_MAX_DIMS];
  for (int i = 0; i < x->rank - 1; ++i) dims[i] = i < dim ? x->dims[i] : i == dim ? size : x->dims[i + 1];
  tt_value *sum = tt_hlo_splat(b, x->dtype, x->rank - 1, dims, 0);
  if (tt_value_count(x) == 0) return sum;
  if (pieces > MOST_PIECES) {
    tt_index_map map;
    tt_map_rows(&map, sum, dim, positions(b, &s));
    return tt_index_write(b, sum, &map, x, TT_COMBINE_ADD);
  }
  if (s.dilation == 1) x = tile(b, x, dim, &s);
  for (int64_t i = 0; i < s.kernel; ++i) {
    tt_value *piece = tt_hlo_squeeze_dim(b, tt_hlo_slice_dim(b, x, dim, i, i + 1, 1), dim);
    int64_t start = i * s.dilation;
    piece = tt_pad_dim_zero(b, piece, dim, start, size - start - reach(&s), s.stride - 1);
    sum = i == 0 ? piece : tt_accumulate(b, sum, piece);
  }
  return sum;
}

// --- im2col, col2im ---------------------------------------------------------------------------------------------------------------

typedef struct patches {
  int64_t kernel[2], dilation[2], padding[2], stride[2];
} patches;

static void read_pair(tt_lowering *l, int arg, const char *name, int64_t *out) {
  int count;
  const int64_t *values = tt_ints(l, arg, &count);
  if (count != 2) tt_fail(l, TT_INVALID_ARGUMENT, "It is expected %s equals to 2, but got size %d", name, count);
  for (int i = 0; i < 2; ++i) out[i] = count == 2 ? values[i] : 1;
}

// The four pairs from argument `first` on.
static bool read_patches(tt_lowering *l, int first, patches *p) {
  read_pair(l, first, "kernel_size", p->kernel);
  read_pair(l, first + 1, "dilation", p->dilation);
  read_pair(l, first + 2, "padding", p->padding);
  read_pair(l, first + 3, "stride", p->stride);
  const struct {
    const char *name;
    const int64_t *pair;
    int64_t least;
    const char *text;
  } checks[] = {
      {"kernel", p->kernel, 1, "kernel size should be greater than zero"},
      {"dilation", p->dilation, 1, "dilation should be greater than zero"},
      {"pad", p->padding, 0, "padding should be non-negative"},
      {"stride", p->stride, 1, "stride should be greater than zero"},
  };
  for (int i = 0; i < 4 && !tt_failed(l); ++i) {
    if (checks[i].pair[0] >= checks[i].least && checks[i].pair[1] >= checks[i].least) continue;
    tt_fail(l, TT_INVALID_ARGUMENT, "%s, but got %s_height: %lld %s_width: %lld", checks[i].text, checks[i].name,
            (long long)checks[i].pair[0], checks[i].name, (long long)checks[i].pair[1]);
  }
  return !tt_failed(l);
}

// How many windows fit into a dim of `size`; negative or 0 when none does.
static int64_t window_count(const patches *p, int d, int64_t size) {
  int64_t room = size + 2 * p->padding[d] - p->dilation[d] * (p->kernel[d] - 1) - 1;
  return (room >= 0 ? room / p->stride[d] : -((-room + p->stride[d] - 1) / p->stride[d])) + 1;
}

static sliding sliding_of(const patches *p, int d, int64_t out) {
  return (sliding){.kernel = p->kernel[d], .dilation = p->dilation[d], .stride = p->stride[d], .out = out};
}

static bool check_image(tt_lowering *l, const patches *p, const tt_value *x, int64_t *out) {
  int lead = x->rank - 3;
  bool valid = lead == 0 || lead == 1;
  for (int i = lead; valid && i < x->rank; ++i) valid = x->dims[i] != 0;
  if (!valid) {
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected 3D or 4D (batch mode) tensor with possibly 0 batch size and other non-zero dimensions "
            "for input, but got: %s",
            tt_shape_text(tt_builder_arena(l->b), x->rank, x->dims));
    return false;
  }
  for (int d = 0; d < 2; ++d) out[d] = window_count(p, d, x->dims[lead + 1 + d]);
  if (out[0] >= 1 && out[1] >= 1) return true;
  tt_fail(l, TT_INVALID_ARGUMENT,
          "Given input with spatial size (%lld, %lld), kernel_size=(%lld, %lld), dilation=(%lld, %lld), padding=(%lld, "
          "%lld), "
          "calculated shape of the array of sliding blocks as (%lld, %lld), but its components must be at least one.",
          (long long)x->dims[lead + 1], (long long)x->dims[lead + 2], (long long)p->kernel[0], (long long)p->kernel[1],
          (long long)p->dilation[0], (long long)p->dilation[1], (long long)p->padding[0], (long long)p->padding[1],
          (long long)out[0], (long long)out[1]);
  return false;
}

static const int swap_middle[] = {0, 1, 2, 4, 3, 5}; // [n, c, kh, oh, kw, ow] <-> [n, c, kh, kw, oh, ow]

void tt_lower_im2col(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *given = tt_operand(l, 0);
  patches p;
  int64_t out[2];
  if (!read_patches(l, 1, &p) || !check_image(l, &p, given, out)) return;
  int lead = given->rank - 3;
  tt_value *x = lead == 0 ? tt_hlo_unsqueeze_dim(b, given, 0) : given;
  int64_t batch = x->dims[0], rows = x->dims[1] * p.kernel[0] * p.kernel[1], blocks = out[0] * out[1];
  for (int d = 1; d >= 0; --d) {
    x = tt_pad_dim_zero(b, x, 2 + d, p.padding[d], p.padding[d], 0);
    sliding s = sliding_of(&p, d, out[d]);
    x = cut(b, x, 2 + d, &s);
  }
  x = tt_hlo_transpose(b, x, swap_middle);
  tt_set_result(
      l, 0, tt_hlo_reshape(b, x, lead + 2, lead == 0 ? (int64_t[]){rows, blocks} : (int64_t[]){batch, rows, blocks}));
}

static bool check_columns(tt_lowering *l, const patches *p, const tt_value *x, const int64_t *size, int64_t *out) {
  int lead = x->rank - 2;
  bool valid = (lead == 0 || lead == 1) && x->dims[lead] != 0 && x->dims[lead + 1] != 0;
  if (!valid) {
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected 2D or 3D (batch mode) tensor for input with possibly 0 batch size and non-zero "
            "dimensions for input, but got: %s",
            tt_shape_text(tt_builder_arena(l->b), x->rank, x->dims));
    return false;
  }
  if (x->dims[lead] % (p->kernel[0] * p->kernel[1]) != 0)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Expected size of input's dimension 1 to be divisible by the product of kernel_size, but got "
            "input.size(1)=%lld and kernel_size=(%lld, %lld).",
            (long long)x->dims[lead], (long long)p->kernel[0], (long long)p->kernel[1]);
  for (int d = 0; d < 2; ++d) out[d] = window_count(p, d, size[d]);
  int64_t blocks = out[0] * out[1];
  if (!tt_failed(l) && x->dims[lead + 1] != blocks)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Given output_size=(%lld, %lld), kernel_size=(%lld, %lld), dilation=(%lld, %lld), padding=(%lld, %lld), "
            "stride=(%lld, "
            "%lld), expected size of input's dimension 2 to match the calculated number of sliding blocks %lld * %lld "
            "= %lld, but "
            "got input.size(2)=%lld.",
            (long long)size[0], (long long)size[1], (long long)p->kernel[0], (long long)p->kernel[1],
            (long long)p->dilation[0], (long long)p->dilation[1], (long long)p->padding[0], (long long)p->padding[1],
            (long long)p->stride[0], (long long)p->stride[1], (long long)out[0], (long long)out[1], (long long)blocks,
            (long long)x->dims[lead + 1]);
  if (!tt_failed(l) && (out[0] < 1 || out[1] < 1))
    tt_fail(l, TT_INVALID_ARGUMENT,
            "calculated shape of the array of sliding blocks as (%lld, %lld), which is too small "
            "(non-positive)",
            (long long)out[0], (long long)out[1]);
  if (!tt_failed(l) && (size[0] < 1 || size[1] < 1))
    tt_fail(l, TT_INVALID_ARGUMENT, "Expected output spatial size to be positive, but got: output_size=(%lld, %lld).",
            (long long)size[0], (long long)size[1]);
  return !tt_failed(l);
}

void tt_lower_col2im(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *given = tt_operand(l, 0);
  patches p;
  int64_t size[2], out[2];
  read_pair(l, 1, "output_size", size);
  if (!read_patches(l, 2, &p) || !check_columns(l, &p, given, size, out)) return;
  int lead = given->rank - 2;
  int64_t batch = lead == 0 ? 1 : given->dims[0], channels = given->dims[lead] / (p.kernel[0] * p.kernel[1]);
  int64_t six[] = {batch, channels, p.kernel[0], p.kernel[1], out[0], out[1]};
  tt_value *x = tt_hlo_transpose(b, tt_hlo_reshape(b, given, 6, six), swap_middle);
  x = tt_hlo_convert(b, x, tt_compute_dtype(given->dtype));
  for (int d = 1; d >= 0; --d) {
    x = add_back(b, x, 2 + 2 * d, size[d] + 2 * p.padding[d], sliding_of(&p, d, out[d]));
    x = tt_hlo_slice_dim(b, x, 2 + 2 * d, p.padding[d], p.padding[d] + size[d], 1);
  }
  x = tt_hlo_convert(b, x, given->dtype);
  tt_set_result(l, 0, lead == 0 ? tt_hlo_reshape(b, x, 3, x->dims + 1) : x);
}

// --- unfold ---------------------------------------------------------------------------------------------------------------------------

// grad has the windows' starts at `dim` and their elements in a last dim.
void tt_lower_unfold_backward(tt_lowering *l) {
  tt_builder *b = l->b;
  tt_value *grad = tt_operand(l, 0);
  int rank;
  const int64_t *dims = tt_ints(l, 1, &rank);
  int dim = tt_wrap_dim(l, tt_int(l, 2), rank);
  int64_t size = tt_int(l, 3), step = tt_int(l, 4);
  if (tt_failed(l)) return;
  bool fits = rank == 0 || (grad->rank == rank + 1 && step > 0 && size == grad->dims[rank] &&
                            (grad->dims[dim] - 1) * step + size <= dims[dim]);
  for (int i = 0; fits && i < rank; ++i) fits = i == dim || grad->dims[i] == dims[i];
  if (!fits) {
    tt_fail(l, TT_MISMATCH, "grad %s holds no windows of %lld every %lld of sizes %s",
            tt_shape_text(tt_builder_arena(b), grad->rank, grad->dims), (long long)size, (long long)step,
            tt_shape_text(tt_builder_arena(b), rank, dims));
    return;
  }
  if (rank == 0) { // a window of a 0-d tensor is its one element
    tt_set_result(l, 0, tt_hlo_reshape(b, grad, 0, NULL));
    return;
  }
  int order[TT_INDEX_MAX_DIMS];
  for (int i = 0; i <= rank; ++i) order[i] = i < dim ? i : i == dim ? rank : i - 1;
  sliding s = {.kernel = size, .dilation = 1, .stride = step, .out = grad->dims[dim]};
  tt_value *x = tt_hlo_convert(b, tt_hlo_transpose(b, grad, order), tt_compute_dtype(grad->dtype));
  if (tt_failed(l)) return;
  tt_set_result(l, 0, tt_hlo_convert(b, add_back(b, x, dim, dims[dim], s), grad->dtype));
}
