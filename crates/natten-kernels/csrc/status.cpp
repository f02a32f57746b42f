#include "nattenc/status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <exception>
#include <new>

#include "natten_kernels.h"

namespace nattenc {
namespace {

// A plain buffer: storing a message must not allocate, and a thread may end at any time.
thread_local char message[4096] = "";

void format_at(size_t offset, const char* format, va_list arguments) {
  vsnprintf(message + offset, sizeof(message) - offset, format, arguments);
}

}  // namespace

int32_t fail(int32_t status, const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  format_at(0, format, arguments);
  va_end(arguments);
  return status;
}

void extend_message(const char* format, ...) noexcept {
  va_list arguments;
  va_start(arguments, format);
  format_at(strlen(message), format, arguments);
  va_end(arguments);
}

int32_t fail_with_current_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return fail(NATTEN_E_OUT_OF_MEMORY, "out of host memory");
  } catch (const std::exception& error) {
    // Upstream's checks throw their text as a quoted literal, and CUDA errors under this prefix.
    const char* text = error.what();
    const char cuda[] = "NATTEN failure: CUDA runtime error: ";
    if (strncmp(text, cuda, sizeof(cuda) - 1) == 0) {
      return fail(NATTEN_E_CUDA, "kernel launch: %s", text + sizeof(cuda) - 1);
    }
    size_t length = strlen(text);
    if (length >= 2 && text[0] == '"' && text[length - 1] == '"') {
      ++text;
      length -= 2;
    }
    return fail(NATTEN_E_INTERNAL, "natten refused: %.*s", static_cast<int>(length), text);
  } catch (...) {
    return fail(NATTEN_E_INTERNAL, "an exception of unknown type");
  }
}

}  // namespace nattenc

extern "C" const char* natten_last_error(void) { return nattenc::message; }
