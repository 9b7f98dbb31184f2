// series.c - evaluates the series and polynomials of series.h.
#include "op/series.h"

#include "op/pointwise.h"

tt_value *tt_series_at(tt_builder *b, const tt_series *series, tt_value *t) {
  int count = t->dtype == TT_F64 ? series->wide : series->narrow;
  double middle = (series->low + series->high) / 2, half = (series->high - series->low) / 2;
  tt_value *u = tt_multiply_constant(b, tt_add_constant(b, t, -middle), 1 / half); // in [-1, 1]
  tt_value *twice = tt_hlo_add(b, u, u);
  tt_value *next = tt_hlo_constant_like(b, u, series->terms[count - 1]), *after = tt_hlo_constant_like(b, u, 0);
  for (int i = count - 2; i > 0; --i) {
    tt_value *term = tt_hlo_subtract(b, tt_hlo_multiply(b, twice, next), after);
    after = next;
    next = tt_add_constant(b, term, series->terms[i]);
  }
  return tt_add_constant(b, tt_hlo_subtract(b, tt_hlo_multiply(b, u, next), after), series->terms[0]);
}

tt_value *tt_polynomial_at(tt_builder *b, const tt_polynomial *polynomial, tt_value *t) {
  if (polynomial->center != 0) t = tt_add_constant(b, t, -polynomial->center);
  tt_value *sum = tt_hlo_constant_like(b, t, polynomial->terms[polynomial->count - 1]);
  for (int i = polynomial->count - 2; i >= 0; --i)
    sum = tt_add_constant(b, tt_hlo_multiply(b, sum, t), polynomial->terms[i]);
  return sum;
}
