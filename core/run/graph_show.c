// graph_show.c - what a graph holds, as text, StableHLO or Graphviz.
#include <string.h>

#include "base/memory.h"
#include "graph/storage.h"
#include "run/graph_internal.h"
#include "run/internal.h"

static tt_status out_of_memory(void) { return tt_error(TT_OUT_OF_MEMORY, "out of host memory while showing a graph"); }

static void append_type(tt_string *out, const tt_layout *layout) {
  tt_string_printf(out, "%s[", tt_dtype_text(layout->dtype));
  for (int i = 0; i < layout->rank; ++i) tt_string_printf(out, i ? ", %lld" : "%lld", (long long)layout->dims[i]);
  tt_string_append(out, "]");
}

static void append_number(tt_string *out, const tt_run_number *n) {
  const tt_scalar *s = &n->scalar;
  if (n->is_random)
    tt_string_printf(out, "seed %llu offset %llu", (unsigned long long)n->state[0], (unsigned long long)n->state[1]);
  else if (s->is_integer)
    tt_string_printf(out, "%lld", (long long)s->integer);
  else if (s->imag != 0)
    tt_string_printf(out, "%.9g%+.9gj", s->real, s->imag);
  else
    tt_string_printf(out, "%.9g", s->real);
}

static void append_ref(const tt_graph *g, tt_ref ref, tt_string *out) {
  int i = tt_ref_index(ref);
  switch (tt_ref_kind_of(ref)) {
  case TT_REF_VALUE: tt_string_printf(out, "%%%d", i); break;
  case TT_REF_OUTSIDE:
    tt_string_printf(out, "outside %d: ", i);
    append_type(out, g->outsides[i].layout);
    break;
  default: append_number(out, &g->numbers[i]); break;
  }
}

// --- text ------------------------------------------------------------------------------------------------------------------

static void append_values(const tt_graph *g, const tt_node *node, tt_string *out) {
  for (int i = 0; i < node->plan->output_count; ++i) {
    const tt_pending *value = g->values[node->first_value + i];
    tt_string_printf(out, i ? ", %%%d: " : "%%%d: ", node->first_value + i);
    append_type(out, value->layout);
    if (!tt_pending_is_live(value)) tt_string_append(out, " (dead)");
  }
}

static void append_node(const tt_graph *g, const tt_node *node, tt_string *out) {
  append_values(g, node, out);
  tt_string_printf(out, " = %s(", node->plan->op_name);
  for (int i = 0; i < node->plan->input_count; ++i) {
    if (i) tt_string_append(out, ", ");
    append_ref(g, g->refs[node->first_ref + i], out);
  }
  tt_string_append(out, ")\n");
}

// --- Graphviz --------------------------------------------------------------------------------------------------------------

static void append_edge(const tt_graph *g, int from_node, int to_node, const tt_layout *layout, tt_string *out) {
  (void)g;
  tt_string_printf(out, from_node >= 0 ? "  n%d -> n%d [label=\"" : "  b%d -> n%d [label=\"",
                   from_node >= 0 ? from_node : -1 - from_node, to_node);
  append_type(out, layout);
  tt_string_append(out, "\"];\n");
}

static int maker_of(const tt_graph *g, int value) {
  int low = 0, high = g->node_count - 1; // the last node whose first value is not above
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (g->nodes[middle].first_value <= value)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

static void append_dot_node(const tt_graph *g, int index, tt_string *out) {
  const tt_node *node = &g->nodes[index];
  bool live = false;
  for (int i = 0; i < node->plan->output_count; ++i) live |= tt_pending_is_live(g->values[node->first_value + i]);
  tt_string_printf(out, "  n%d [label=\"%s\"%s];\n", index, node->plan->op_name, live ? ", style=filled" : "");
  for (int i = 0; i < node->plan->input_count; ++i) {
    tt_ref ref = g->refs[node->first_ref + i];
    int at = tt_ref_index(ref);
    if (tt_ref_kind_of(ref) == TT_REF_VALUE) append_edge(g, maker_of(g, at), index, g->values[at]->layout, out);
    if (tt_ref_kind_of(ref) != TT_REF_OUTSIDE) continue;
    tt_string_printf(out, "  b%d [shape=box, label=\"outside %d\"];\n", at, at);
    append_edge(g, -1 - at, index, g->outsides[at].layout, out);
  }
}

// --- which calls -------------------------------------------------------------------------------------------------------------

// needed[n]: does the value of `storage` need node n? All of them without a storage.
static tt_status mark_needed(const tt_graph *g, tt_storage *storage, bool *needed) {
  memset(needed, storage == NULL, (size_t)g->node_count);
  if (!storage) return TT_SUCCESS;
  tt_buffer *buffer;
  tt_pending *pending;
  const tt_layout *layout;
  TT_TRY(tt_storage_peek(storage, &buffer, &pending, &layout));
  tt_buffer_release(buffer);
  if (pending && pending->graph == g->number) needed[maker_of(g, pending->number)] = true;
  tt_pending_release(pending);
  for (int n = g->node_count - 1; n >= 0; --n) {
    const tt_node *node = &g->nodes[n];
    for (int i = 0; needed[n] && i < node->plan->input_count; ++i) {
      tt_ref ref = g->refs[node->first_ref + i];
      if (tt_ref_kind_of(ref) == TT_REF_VALUE) needed[maker_of(g, tt_ref_index(ref))] = true;
    }
  }
  return TT_SUCCESS;
}

static tt_status show_calls(const tt_graph *g, tt_storage *storage, bool dot, tt_string *out) {
  bool *needed = tt_malloc((size_t)g->node_count + 1);
  if (!needed) return out_of_memory();
  tt_status status = mark_needed(g, storage, needed);
  if (dot) tt_string_append(out, "digraph pending {\n");
  for (int n = 0; !status && n < g->node_count; ++n) {
    if (!needed[n]) continue;
    if (dot)
      append_dot_node(g, n, out);
    else
      append_node(g, &g->nodes[n], out);
  }
  if (dot) tt_string_append(out, "}\n");
  tt_free(needed);
  return tt_status_join(status, tt_string_status(out));
}

static tt_status show_program(const tt_graph *g, tt_string *out) {
  tt_graph_program *p;
  TT_TRY(tt_graph_program_find(g, &p));
  tt_status status = p->program ? tt_program_text(p->program, out) : TT_SUCCESS;
  tt_graph_program_release(p);
  return status;
}

tt_status tt_graph_show(const tt_graph *g, tt_storage *storage, tt_graph_format format, tt_string *out) {
  if (format == TT_GRAPH_STABLEHLO) return g->node_count ? show_program(g, out) : TT_SUCCESS;
  return show_calls(g, storage, format == TT_GRAPH_GRAPHVIZ, out);
}
