// How every function of the library reports failure: a NATTEN_E_* status and a message that belongs
// to the calling thread. Exceptions of upstream's headers are turned into both at the C boundary.
#pragma once

#include <cstdint>

namespace nattenc {

// Stores the message and returns `status`.
__attribute__((format(printf, 2, 3))) int32_t fail(int32_t status, const char* format, ...) noexcept;

// Adds to the message that is already stored.
__attribute__((format(printf, 1, 2))) void extend_message(const char* format, ...) noexcept;

// Maps the exception in flight; only callable inside a catch block.
int32_t fail_with_current_exception() noexcept;

template <class Body>
int32_t guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return fail_with_current_exception();
  }
}

}  // namespace nattenc

// Returns from the enclosing function with the status of a step that failed.
#define NATTENC_TRY(step)                           \
  do {                                              \
    if (const int32_t nattenc_status = (step)) {    \
      return nattenc_status;                        \
    }                                               \
  } while (false)
