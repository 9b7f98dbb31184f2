// max_unpool.c - values put back to where the maxima of a pooling were: max_unpool2d, max_unpool3d.
#include <string.h>

#include "op/index.h"
#include "op/max_pool.h"

static void check_unpool(tt_lowering *l, int spatial, int count) {
  const tt_tensor *x = tt_tensor_arg(l, 0), *t = tt_tensor_arg(l, 1);
  tt_arena *arena = tt_builder_arena(l->b);
  const char *names = spatial == 2 ? "two elements (height, width)" : "three elements (depth, height, width)";
  if (t->dtype != TT_S64 && spatial == 2)
    tt_fail(l, TT_INVALID_ARGUMENT, "elements in indices should be type int64 but got: %s", tt_dtype_text(t->dtype));
  else if (t->dtype != TT_S64)
    tt_fail(l, TT_INVALID_ARGUMENT, "elements in indices should be type int64");
  else if (count != spatial)
    tt_fail(l, TT_INVALID_ARGUMENT, "There should be exactly %s in output_size, but got %d elements.", names, count);
  else if (x->rank != spatial + 1 && x->rank != spatial + 2)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "Input to max_unpooling%dd should be a %dd or %dd Tensor, but got a tensor with %d dimensions.", spatial,
            spatial + 1, spatial + 2, x->rank);
  for (int i = 0; i < x->rank && !tt_failed(l); ++i)
    if (t->rank != x->rank || t->sizes[i] != x->sizes[i])
      tt_fail(
          l, TT_INVALID_ARGUMENT,
          "Expected shape of indices to be same as that of the input tensor (%s) but got indices tensor with shape: %s",
          tt_shape_text(arena, x->rank, x->sizes), tt_shape_text(arena, t->rank, t->sizes));
  for (int i = 1; i < spatial + 1 && !tt_failed(l); ++i)
    if (x->sizes[x->rank - spatial - 1 + i] == 0)
      tt_fail(l, TT_INVALID_ARGUMENT,
              "max_unpooling%dd_forward_out_cpu(): Expected input to have non-zero size for non-batch dimensions, but "
              "got %s "
              "with dimension %d being empty.",
              spatial, tt_shape_text(arena, x->rank, x->sizes), x->rank - spatial - 1 + i);
}

static void lower_unpool(tt_lowering *l, int spatial) {
  int count;
  const int64_t *out = tt_ints(l, 2, &count);
  check_unpool(l, spatial, count);
  if (tt_failed(l)) return;
  const tt_tensor *x = tt_tensor_arg(l, 0);
  tt_pool p = {.spatial = spatial, .lead = x->rank - spatial};
  memcpy(p.in, out, (size_t)spatial * sizeof *out);
  tt_value *at = tt_index_checked(l, tt_operand(l, 1), tt_pool_product(spatial, out), false, TT_INVALID_ARGUMENT,
                                  "Found an invalid max index");
  tt_set_result(l, 0, tt_pool_scatter(l, tt_operand(l, 0), at, &p, TT_COMBINE_REPLACE));
  tt_set_channels_last(l, 0, tt_is_channels_last(l, 0));
}

void tt_lower_max_unpool2d(tt_lowering *l) { lower_unpool(l, 2); }

// (self, indices, output_size, stride, padding): the last two are only checked.
void tt_lower_max_unpool3d(tt_lowering *l) {
  int strides, paddings;
  const int64_t *stride = tt_ints(l, 3, &strides);
  tt_ints(l, 4, &paddings);
  if (strides != 3 || paddings != 3)
    tt_fail(l, TT_INVALID_ARGUMENT,
            "There should be exactly three elements (depth, height, width) in %s, but got: %d elements.",
            strides != 3 ? "stride" : "padding", strides != 3 ? strides : paddings);
  else if (stride[0] <= 0 || stride[1] <= 0 || stride[2] <= 0)
    tt_fail(l, TT_INVALID_ARGUMENT, "strides should be greater than zero, but got stride: %s",
            tt_shape_text(tt_builder_arena(l->b), 3, stride));
  if (tt_failed(l)) return;
  lower_unpool(l, 3);
}
