// random.h - counter-based random numbers.
//
// A generator is a seed and an offset, 16 bytes in the form that torch's DTensor code reads. A random op takes the state as a
// program input and moves the offset on by the number of draws (rounded up to 4, as torch's Philox does), so the same seed
// gives the same values in every mode and a failed call leaves the generator sound.
//
// Threads: every function takes the generator's lock.
#ifndef TT_RUN_RANDOM_H_
#define TT_RUN_RANDOM_H_

#include <stdint.h>

#include "base/status.h"
#include "op/arg.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TT_GENERATOR_STATE_SIZE = 16 };
#define TT_DEFAULT_SEED UINT64_C(67280421310721) // c10::detail::getNonDeterministicRandom's counterpart: default_rng_seed_val

// Reference-counted so that a torch Generator and a recorded program may share it.
tt_status tt_generator_create(int device_index, uint64_t seed, tt_generator **out_generator);
void tt_generator_retain(tt_generator *g);
void tt_generator_release(tt_generator *g);
int tt_generator_device(const tt_generator *g);
uint64_t tt_generator_seed(tt_generator *g);
uint64_t tt_generator_offset(tt_generator *g);
void tt_generator_set_seed(tt_generator *g, uint64_t seed);     // offset back to 0
void tt_generator_set_offset(tt_generator *g, uint64_t offset); // a multiple of 4 by torch's convention
void tt_generator_get_state(tt_generator *g, uint8_t state[TT_GENERATOR_STATE_SIZE]);
void tt_generator_set_state(tt_generator *g, const uint8_t state[TT_GENERATOR_STATE_SIZE]);
// Returns the state before and moves the offset on by `count` rounded up to a multiple of 4.
void tt_generator_advance(tt_generator *g, uint64_t count, uint64_t out_state[2]);
// The default generator of a device, made on first use. Borrowed; lives for ever.
tt_status tt_generator_default(int device_index, tt_generator **out_generator);

#ifdef __cplusplus
}
#endif
#endif // TT_RUN_RANDOM_H_
