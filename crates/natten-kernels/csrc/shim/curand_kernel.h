// In place of cuRAND's header, which upstream's fmha kernels include and use nothing of: the toolkits
// that we compile with need not have it.
#pragma once
