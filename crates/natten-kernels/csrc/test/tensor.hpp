// What of CuTe launch_blackwell.cuh uses, for blackwell_test.cpp.
#pragma once

#include <tuple>

namespace cute {

using std::get;
using std::make_tuple;

template <class Tuple>
using tuple_size = std::tuple_size<Tuple>;

}  // namespace cute
