# Values of R's psych and pscl to agree with. Run in a folder with lsat6.csv and housevotes84.csv, a
# column an item, missing values NA, both data sets in the order of their files:
#   Rscript make_from_r.R
# Made with R 4.2.2, psych 2.2.9 and pscl 1.5.5. Values of mirt 1.45.1: slopes and
# intercepts of mirt(X, 1, SE = TRUE, TOL = 1e-8, quadpts = 61), standard errors by Louis's identity
# or as SE.type says (mirt_items.csv), M2(calcNull = TRUE) and empirical reliability (mirt_fit.csv),
# itemfit by S_X2 and infit (mirt_item_fit.csv).
suppressMessages({
  library(psych)
  library(pscl)
})
lsat <- tetrachoric(read.csv("lsat6.csv"))
loadings <- unclass(principal(lsat$rho, nfactors = 2, rotate = "none")$loadings)
write.csv(cbind(lsat$rho, tau = lsat$tau, loadings), "psych_lsat6.csv", row.names = FALSE)

votes <- rollcall(as.matrix(read.csv("housevotes84.csv")), yea = 1, nay = 0, missing = NA)
set.seed(1)
points <- ideal(votes, d = 1, maxiter = 30000, thin = 20, burnin = 5000, normalize = TRUE)
write.csv(data.frame(ideal = points$xbar[, 1]), "pscl_housevotes84.csv", row.names = FALSE)
